//! Faults that can happen in a run. Each seed draws a subset, so that faults that mask each other
//! are also tested apart.

use stele_types::Prng;

macro_rules! faults {
    ($($kind:ident $name:literal,)*) => {
        /// One kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $(#[doc = $name] $kind,)*
        }

        impl Fault {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

faults! {
    Loss "loss",
    Duplicate "duplicate",
    Delay "delay",
    OneWay "one-way",
    Partition "partition",
    Corrupt "corrupt",
    Bandwidth "bandwidth",
    PowerCut "power-cut",
    Kill "kill",
    CrashPoint "crash-point",
    Pause "pause",
    SlowDisk "slow-disk",
    Stall "stall",
    ReadFails "read-fails",
    ReadFlips "read-flips",
    WriteFails "write-fails",
    SyncFails "sync-fails",
    SyncDirFails "sync-dir-fails",
    NoSpace "no-space",
    BitFlip "bit-flip",
    Misdirect "misdirect",
    LoseWrite "lose-write",
    ReplaceDisk "replace-disk",
    WallJump "wall-jump",
    Skew "skew",
    SkewBeyond "skew-beyond",
    Transfer "transfer",
    Members "members",
    Split "split",
    Merge "merge",
    Drain "drain",
    Hostile "hostile",
    LoseFile "lose-file",
    PlacementCut "placement-cut",
    Upgrade "upgrade",
    Depose "depose",
    Mistake "mistake",
    ClockStop "clock-stop",
    StoreHangs "store-hangs",
    StoreFails "store-fails",
    Unreadable "unreadable",
    UnequalDevices "unequal-devices",
    SlowDevice "slow-device",
    SpeedFlip "speed-flip",
    SmallDevice "small-device",
    Labels "labels",
    ModeChange "mode-change",
    CopyDirectory "copy-directory",
    MoveDirectory "move-directory",
    RestoreDirectory "restore-directory",
    SlowMaintenance "slow-maintenance",
    LoseMajority "lose-majority",
}

impl Fault {
    /// Faults that are never drawn: they exceed what the product tolerates.
    const UNSAFE: [Self; 1] = [Self::SkewBeyond];

    /// Returns true for a fault that only plans without leases contain: a lease of a clock that stops
    /// outlives the vote holds of clocks that go on.
    pub fn needs_leases_off(self) -> bool {
        self == Self::ClockStop
    }

    /// Returns true for a fault of one store of a node. Only some seeds draw one, apart from the others.
    pub fn is_of_one_store(self) -> bool {
        matches!(self, Self::StoreHangs | Self::StoreFails | Self::Unreadable)
    }

    /// Returns true for a fault of unequal hardware, or of the placement that follows it. Only some seeds
    /// draw one, apart from the others.
    pub fn is_of_hardware(self) -> bool {
        self.changes_speeds() || matches!(self, Self::SmallDevice | Self::Labels | Self::ModeChange)
    }

    /// Returns true for a fault that lasts for the whole run, or that has a schedule of its own.
    pub fn is_permanent(self) -> bool {
        self.is_of_directories()
            || matches!(self, Self::SlowMaintenance | Self::LoseMajority)
            || self.is_of_hardware() && !matches!(self, Self::SlowDevice | Self::ModeChange)
    }

    /// Returns true for a fault of a store's directory: two directories of one store, or one at another
    /// place. Only some seeds draw one, apart from the others.
    pub fn is_of_directories(self) -> bool {
        matches!(self, Self::CopyDirectory | Self::MoveDirectory | Self::RestoreDirectory)
    }

    /// Returns true for a fault that makes the speeds of devices differ.
    pub fn changes_speeds(self) -> bool {
        matches!(self, Self::UnequalDevices | Self::SlowDevice | Self::SpeedFlip)
    }

    /// Returns the kind with that command line name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fault| fault.name() == name)
    }

    /// Returns true if a seed may draw it.
    pub fn is_drawn(self) -> bool {
        !Self::UNSAFE.contains(&self)
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSet(u64);

impl FaultSet {
    /// Draws a subset: sometimes the empty set, otherwise each kind with a chance that is drawn
    /// too. It contains no fault that needs leases off, none of one store, of hardware, of maintenance and of directories, and no
    /// loss of a majority.
    pub fn draw(prng: &mut Prng) -> Self {
        let mut set = Self::default();
        let percent = [0, 10, 25, 25, 50, 50, 80, 100][prng.below(8) as usize];
        let is_apart = |fault: &&Fault| {
            fault.needs_leases_off()
                || fault.is_of_one_store()
                || fault.is_of_hardware()
                || fault.is_of_directories()
                || matches!(fault, Fault::SlowMaintenance | Fault::LoseMajority)
        };
        for fault in Fault::ALL.iter().filter(|fault| !is_apart(fault)) {
            let chosen = prng.below(100) < percent;
            if chosen && fault.is_drawn() {
                set.insert(*fault);
            }
        }
        set
    }

    /// Adds faults of one store, each with the same chance.
    pub fn draw_of_one_store(&mut self, prng: &mut Prng) {
        for fault in Fault::ALL.iter().filter(|fault| fault.is_of_one_store()) {
            if prng.below(3) > 0 {
                self.insert(*fault);
            }
        }
    }

    /// Adds faults of hardware, each with the same chance, and restarts and orders that move replicas
    /// meanwhile.
    pub fn draw_of_hardware(&mut self, prng: &mut Prng) {
        for fault in Fault::ALL.iter().filter(|fault| fault.is_of_hardware()) {
            if prng.below(3) > 0 {
                self.insert(*fault);
            }
        }
        for fault in [Fault::Drain, Fault::Members, Fault::Transfer, Fault::Kill] {
            if prng.coin() {
                self.insert(fault);
            }
        }
    }

    /// Adds faults of directories, each with the same chance.
    pub fn draw_of_directories(&mut self, prng: &mut Prng) {
        for fault in Fault::ALL.iter().filter(|fault| fault.is_of_directories()) {
            if prng.below(3) > 0 {
                self.insert(*fault);
            }
        }
    }

    /// Returns true if the set contains a fault of directories.
    pub fn has_of_directories(self) -> bool {
        self.iter().any(Fault::is_of_directories)
    }

    /// Returns true if the set contains a fault of hardware.
    pub fn has_of_hardware(self) -> bool {
        self.iter().any(Fault::is_of_hardware)
    }

    /// Returns true if the set contains a fault of one store.
    pub fn has_of_one_store(self) -> bool {
        self.iter().any(Fault::is_of_one_store)
    }

    /// Returns true if the set contains the kind.
    pub fn has(self, fault: Fault) -> bool {
        self.0 >> fault as u64 & 1 == 1
    }

    /// Adds a kind.
    pub fn insert(&mut self, fault: Fault) {
        self.0 |= 1 << fault as u64;
    }

    /// Removes a kind.
    pub fn remove(&mut self, fault: Fault) {
        self.0 &= !(1 << fault as u64);
    }

    /// Returns the kinds in the set.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.iter().copied().filter(move |fault| self.has(*fault))
    }

    /// Returns the names, separated by commas.
    pub fn names(self) -> String {
        let names: Vec<&str> = self.iter().map(Fault::name).collect();
        names.join(",")
    }
}
