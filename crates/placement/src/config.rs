//! Cluster settings. All are numbers and can be changed at run time.

use stele_types::{Error, Result};

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

        /// Every setting, in display order.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            meaning: $meaning,
            default: $default,
            min: $min,
            max: $max,
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
        "Whether replicas and leaders are spread evenly (1) or left where they are (0).";
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
}

/// Difference of two stores' loads, in percent of the average, below which they count as even.
pub(crate) const BALANCE_TOLERANCE_PERCENT: u64 = 5;
/// Free space, in percent of the capacity, below which a store gets no new replicas.
pub(crate) const FREE_PERCENT_MIN: u64 = 5;
/// Upper bound of that free space: a large device needs no larger reserve.
pub(crate) const FREE_BYTES_ENOUGH: u64 = 2 << 30;

impl Config {
    /// Returns whether stores may serve reads under leases.
    pub fn has_leases(&self) -> bool {
        self.leases != 0
    }

    /// Returns the limit of concurrent leader moves. Moving a leader costs less than moving a
    /// replica.
    pub fn leader_moves_max(&self) -> u64 {
        self.moves_max.saturating_mul(2)
    }

    /// Returns the description of the setting `name` if it accepts `value`. Fails with `Invalid`.
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
