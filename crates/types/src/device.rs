//! Speed of a device, as a store measures it (ALOR section 3.2: disk-filling speed).

/// Time of one operation of a device by its size: `fixed_nanos + bytes × picos_per_byte / 1000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpCost {
    /// Nanoseconds of an operation without bytes.
    pub fixed_nanos: u64,
    /// Picoseconds for each byte.
    pub picos_per_byte: u64,
}

impl OpCost {
    /// Returns the nanoseconds of one operation of `bytes`.
    pub fn nanos(self, bytes: u64) -> u64 {
        let transfer = u128::from(bytes) * u128::from(self.picos_per_byte) / 1000;
        self.fixed_nanos.saturating_add(u64::try_from(transfer).unwrap_or(u64::MAX))
    }

    /// Returns the operations of `bytes` that the device ends in a second, one after the other;
    /// `None` if the cost is unknown (zero).
    pub fn per_second(self, bytes: u64) -> Option<u64> {
        1_000_000_000_u64.checked_div(self.nanos(bytes)).map(|count| count.max(1))
    }
}

/// Speed of a store's device over the last two seconds, or over the last ten if those have fewer than
/// [`DeviceSpeed::OPERATIONS_MIN`] operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceSpeed {
    /// Cost of a synced write of the log: measured, or the estimate of the store's probe while it
    /// writes too little. Zero if unknown.
    pub write: OpCost,
    /// Cost of a read that needed the device. Zero if unknown.
    pub read: OpCost,
    /// Writes measured in the window; 0 if `write` is an estimate.
    pub writes: u64,
    /// Reads measured in the window; 0 if `read` is an estimate.
    pub reads: u64,
}

impl DeviceSpeed {
    /// Operations that make a measurement.
    pub const OPERATIONS_MIN: u64 = 8;

    /// Whether all measured writes are of the last two seconds. Earlier ones count only until they make a
    /// measurement.
    pub fn has_recent_writes(&self) -> bool {
        self.writes > Self::OPERATIONS_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_cost_has_no_speed_and_a_known_one_at_least_one_operation_a_second() {
        assert_eq!(OpCost::default().per_second(16 << 10), None);
        let slow = OpCost { fixed_nanos: u64::MAX, picos_per_byte: u64::MAX };
        assert_eq!(slow.per_second(u64::MAX), Some(1));
        let cost = OpCost { fixed_nanos: 1_000_000, picos_per_byte: 1_000 };
        assert_eq!(cost.nanos(16_384), 1_016_384);
        assert_eq!(cost.per_second(16_384), Some(983));
    }
}
