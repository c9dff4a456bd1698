//! Settings of the whole cluster: all of them numbers, all of them changed while it runs.

use stele_types::{Error, Result};

/// What a setting means and which values it takes.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name, with the unit at the end.
    pub name: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Its value in a new cluster.
    pub default: u64,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
}

macro_rules! settings {
    ($($name:ident = $default:expr, $min:expr, $max:expr, $meaning:expr;)*) => {
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

        /// Every setting, in the order in which it is shown.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            meaning: $meaning,
            default: $default,
            min: $min,
            max: $max,
        },)*];

        impl Config {
            /// The value of the setting of that name.
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
        "Copies of every region of user data, as far as there are nodes for them.";
    silent_after_seconds = 30, 1, 3600,
        "A store without a heartbeat for so long gets no new replicas and no leaders.";
    down_after_seconds = 1800, 1, 604_800,
        "The replicas of a store without a heartbeat for so long are rebuilt on other stores.";
    balance = 1, 0, 1,
        "Whether replicas and leaders are spread evenly (1) or left where they are (0).";
    moves_max = 4, 0, 1024,
        "Replicas moved at the same time to balance or to drain, and half of the leaders; repairs do not \
         count.";
    snapshots_max = 4, 1, 64,
        "Replicas that one store sends, and that one store receives, at the same time.";
    merge_below_bytes = 0, 0, 1 << 40,
        "A region is merged into its neighbour when both together are smaller than this; 0 for never.";
}

/// Stores whose loads differ by less than this share of the average count as even.
pub(crate) const BALANCE_TOLERANCE_PERCENT: u64 = 5;
/// A store with less free space than this share of its capacity gets no new replicas.
pub(crate) const FREE_PERCENT_MIN: u64 = 5;
/// Of a large device that share is more than a replica needs to be safe, and others may fill it.
pub(crate) const FREE_BYTES_ENOUGH: u64 = 2 << 30;

impl Config {
    /// Leaders moved at the same time: that costs less than moving replicas.
    pub fn leader_moves_max(&self) -> u64 {
        self.moves_max.saturating_mul(2)
    }

    /// The setting's description if it exists and takes `value`. Fails with `Invalid`.
    pub fn check(name: &str, value: u64) -> Result<&'static Setting> {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
            return Err(Error::invalid(format!("there is no setting `{name}`")));
        };
        let (min, max) = (setting.min, setting.max);
        match (min..=max).contains(&value) {
            true => Ok(setting),
            false => Err(Error::invalid(format!("{name} takes {min} to {max}, not {value}"))),
        }
    }

    /// Takes a persisted value. A name that this build doesn't know (written by a newer one) and a
    /// value beyond today's bounds are left alone.
    pub(crate) fn fold(&mut self, name: &str, value: Option<u64>) {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else { return };
        if let Some(slot) = self.slot(name) {
            *slot = value.unwrap_or(setting.default).clamp(setting.min, setting.max);
        }
    }

    /// [`Config::replicas`] as a count.
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
        }
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
