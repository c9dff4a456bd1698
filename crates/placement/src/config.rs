//! Cluster settings. All are numbers, some with names for their values, and can be changed at run
//! time.

use stele_types::{Error, Result};

/// Rule by which leaders and data are placed. The numbers are the values of `placement_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Leaders and data evenly, as if all devices were equally fast.
    Even = 0,
    /// Leaders by the speed of the devices, data evenly.
    Leaders = 1,
    /// Leaders and data by the speed of the devices (ALOR).
    Alor = 2,
    /// As `Alor`; besides, a majority of each region's voters is on fast devices.
    #[default]
    Quorum = 3,
}

impl Mode {
    /// Every mode, by number.
    pub const ALL: [Self; 4] = [Self::Even, Self::Leaders, Self::Alor, Self::Quorum];
    const NAMES: &'static [&'static str] = &["even", "leaders", "alor", "quorum"];
}

/// Description and bounds of a setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name, with the unit at the end.
    pub name: &'static str,
    /// Effect, for the reference page.
    pub meaning: &'static str,
    /// Value in a new cluster.
    pub default: u64,
    /// Smallest value, inclusive.
    pub min: u64,
    /// Largest value, inclusive.
    pub max: u64,
    /// Names of the values, from 0; empty for a plain number.
    pub names: &'static [&'static str],
}

impl Setting {
    /// Returns a value as people write it: its name, if the setting has names.
    pub fn text_of(&self, value: u64) -> String {
        let name = usize::try_from(value).ok().and_then(|value| self.names.get(value));
        name.map_or_else(|| value.to_string(), |name| (*name).to_owned())
    }

    /// Returns the value that `text` states: a name, a number, or a word for 0 or 1. Fails with
    /// `Invalid`.
    pub fn value_of(&self, text: &str) -> Result<u64> {
        if let Some(value) = self.names.iter().position(|name| *name == text) {
            return Ok(value as u64);
        }
        let number = match text {
            _ if !self.names.is_empty() => text.parse().ok(),
            "true" | "on" => Some(1),
            "false" | "off" => Some(0),
            _ => text.parse().ok(),
        };
        let wanted = match self.names {
            [] => "a number".to_owned(),
            names => format!("one of {}", names.join(", ")),
        };
        let refusal = || Error::invalid(format!("{} takes {wanted}, not `{text}`", self.name));
        number.ok_or_else(refusal)
    }
}

macro_rules! names_or_none {
    () => {
        &[]
    };
    ($names:expr) => {
        $names
    };
}

macro_rules! settings {
    ($($name:ident = $default:expr, $min:expr, $max:expr, $meaning:expr $(, $names:expr)?;)*) => {
        /// The values of all settings.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $(#[doc = $meaning] pub $name: u64,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        /// Every setting, in display order.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            meaning: $meaning,
            default: $default,
            min: $min,
            max: $max,
            names: names_or_none!($($names)?),
        },)*];

        impl Config {
            /// Returns the value of the setting called `name`; `None` if there is none.
            pub fn get(&self, name: &str) -> Option<u64> {
                match name {
                    $(stringify!($name) => Some(self.$name),)*
                    _ => None,
                }
            }

            fn slot(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

settings! {
    replicas = 3, 1, 7,
        "Copies of every region of user data, at most one for each node.";
    silent_after_seconds = 30, 1, 3600,
        "A store gets no new replicas and no leaders after this time without a heartbeat.";
    down_after_seconds = 1800, 1, 604_800,
        "The replicas of a store are rebuilt on other stores after this time without a heartbeat.";
    balance = 1, 0, 1,
        "Whether replicas and leaders are balanced, by `placement_mode` (1), or left where they are (0).";
    moves_max = 4, 0, 1024,
        "Replicas moved at the same time to balance or to drain, and half of the leaders; repairs do \
         not count.";
    snapshots_max = 4, 1, 64,
        "Replicas that one store sends, and that one store receives, at the same time.";
    merge_below_bytes = 0, 0, 1 << 40,
        "A region is merged into its neighbour when both together are smaller than this; 0 disables \
         merging.";
    undetermined_writes_fail = 0, 0, 1,
        "Answer to puts and deletes of unknown outcome: an error that clients return to their caller \
         (1), or a stale command, after which clients of TiKV repeat them (0). A repeated put can \
         overwrite what another client wrote in between.";
    leases = 1, 0, 1,
        "Whether leaders serve reads under leases (1) or confirm each with a majority (0), for \
         machines with clocks that may stop; a node follows with its next heartbeat.";
    placement_mode = Mode::Quorum as u64, 0, 3,
        "Placement of leaders and data: both evenly (`even`); leaders on the fastest devices and data \
         evenly (`leaders`); both by the speed of the devices (`alor`); and besides, a majority of \
         each region on fast devices (`quorum`).",
        Mode::NAMES;
    speed_op_bytes = 16 << 10, 512, 64 << 20,
        "Size of the synced write by which the speed of devices is stated and compared.";
    slow_data_after_seconds = 600, 10, 604_800,
        "Data follows the speed of a device after that has changed for this time; leaders follow at \
         once.";
    moving_bytes_max = 2 << 30, 64 << 20, 1 << 50,
        "Bytes of the regions that one store sends, or receives, at the same time to balance; a single \
         region may be larger.";
}

/// Difference of two stores' loads, in percent of the average, below which they count as even.
pub(crate) const BALANCE_TOLERANCE_PERCENT: u64 = 5;
/// Free space, in percent of the capacity, below which a store gets no new replicas.
pub(crate) const FREE_PERCENT_MIN: u64 = 5;
/// Upper bound of that free space: a large device needs no larger reserve.
pub(crate) const FREE_BYTES_ENOUGH: u64 = 2 << 30;

impl Config {
    pub(crate) fn has_leases(&self) -> bool {
        self.leases != 0
    }

    /// Returns the rule by which leaders and data are placed.
    pub fn mode(&self) -> Mode {
        let number = usize::try_from(self.placement_mode).ok();
        number.and_then(|number| Mode::ALL.get(number)).copied().unwrap_or_default()
    }

    /// Returns the limit of concurrent leader moves. Moving a leader costs less than moving a
    /// replica.
    pub(crate) fn leader_moves_max(&self) -> u64 {
        self.moves_max.saturating_mul(2)
    }

    /// Returns the description of the setting `name`. Fails with `Invalid`.
    pub fn setting(name: &str) -> Result<&'static Setting> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name);
        setting.ok_or_else(|| Error::invalid(format!("there is no setting `{name}`")))
    }

    /// Returns the description of the setting `name` if it accepts `value`. Fails with `Invalid`.
    pub fn check(name: &str, value: u64) -> Result<&'static Setting> {
        let setting = Self::setting(name)?;
        let (min, max) = (setting.min, setting.max);
        match (min..=max).contains(&value) {
            true => Ok(setting),
            false => {
                let (min, max) = (setting.text_of(min), setting.text_of(max));
                Err(Error::invalid(format!("{name} takes {min} to {max}, not {value}")))
            }
        }
    }

    /// Folds in a persisted value, or restores the default for `None`. Ignores a name that this
    /// build does not know (a newer one wrote it), and clamps a value beyond today's bounds.
    pub(crate) fn fold(&mut self, name: &str, value: Option<u64>) {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else { return };
        if let Some(slot) = self.slot(name) {
            *slot = value.unwrap_or(setting.default).clamp(setting.min, setting.max);
        }
    }

    /// Returns [`Config::replicas`] as a count.
    pub fn replicas(&self) -> usize {
        self.replicas as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_its_setting_takes() {
        let config = Config::default();
        for setting in SETTINGS {
            assert_eq!(config.get(setting.name), Some(setting.default));
            Config::check(setting.name, setting.default).unwrap();
            let text = setting.text_of(setting.default);
            assert_eq!(setting.value_of(&text).unwrap(), setting.default, "{text}");
        }
    }

    #[test]
    fn a_value_with_a_name_is_written_and_read_by_it() {
        let setting = Config::check("placement_mode", 3).unwrap();
        assert_eq!(setting.text_of(3), "quorum");
        assert_eq!(setting.value_of("leaders").unwrap(), 1);
        assert_eq!(setting.value_of("0").unwrap(), 0);
        let refused = setting.value_of("on").unwrap_err().to_string();
        assert!(refused.contains("even, leaders, alor, quorum"), "{refused}");
        assert!(Config::check("placement_mode", 4).is_err());
        let mut config = Config::default();
        for (number, mode) in Mode::ALL.into_iter().enumerate() {
            config.fold("placement_mode", Some(number as u64));
            assert_eq!(config.mode(), mode);
        }
        let switch = Config::check("balance", 1).unwrap();
        assert_eq!(switch.value_of("off").unwrap(), 0);
        assert!(switch.value_of("even").is_err());
    }

    #[test]
    fn bounds_and_names_are_checked_and_persisted_values_are_clamped() {
        assert!(Config::check("replicas", 0).is_err());
        assert!(Config::check("colour", 1).unwrap_err().to_string().contains("colour"));
        let mut config = Config::default();
        config.fold("replicas", Some(99));
        assert_eq!(config.replicas(), 7);
        config.fold("colour", Some(1));
        config.fold("replicas", None);
        assert_eq!(config, Config::default());
    }
}
