//! Systems by name.

use super::phases::{Measured, Phase, Plan};
use super::recovery;
use crate::args::Args;
use crate::designs::harness::{Cluster, Mode};
#[cfg(feature = "rocksdb")]
use crate::designs::rocks::{self, RockStore};
use crate::designs::stele::{self, Design};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use stele_storage::StorageEngine;

#[derive(Clone, Debug)]
pub(super) struct System {
    pub name: &'static str,
    mode: Mode,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Stele(Box<stele_engine::Options>),
    #[cfg(feature = "rocksdb")]
    Rock(Box<rocks::Settings>),
}

/// Action on a system's engines, independent of their type.
trait Use {
    type Out;
    fn with<E: StorageEngine + 'static>(
        self,
        mode: Mode,
        open: impl Fn(&Path) -> stele_types::Result<E>,
    ) -> Result<Self::Out>;
}

pub(super) fn store_dirs(dir: &Path, stores: u64) -> Vec<PathBuf> {
    (1..=stores).map(|store| dir.join(format!("store-{store}"))).collect()
}

pub(super) fn with_group<E: StorageEngine + 'static, T>(
    plan: &Plan,
    mode: Mode,
    dir: &Path,
    open: impl Fn(&Path) -> stele_types::Result<E>,
    f: impl FnOnce(&Cluster<E>) -> Result<T>,
) -> Result<T> {
    let dirs = store_dirs(dir, plan.stores);
    let engines = dirs.iter().map(|dir| open(dir)).collect::<stele_types::Result<Vec<E>>>()?;
    let cluster = Cluster::start(engines, &plan.setup(mode))?;
    let out = f(&cluster)?;
    cluster.stop()?;
    Ok(out)
}

struct Phases<'a>(&'a Plan, &'a [Phase], &'a Path);

impl Use for Phases<'_> {
    type Out = Vec<Value>;

    fn with<E: StorageEngine + 'static>(
        self,
        mode: Mode,
        open: impl Fn(&Path) -> stele_types::Result<E>,
    ) -> Result<Vec<Value>> {
        let Self(plan, phases, dir) = self;
        with_group(plan, mode, dir, open, |cluster| {
            Measured::new(cluster, plan, dir).phases(phases)
        })
    }
}

struct Load<'a>(&'a Plan);

impl Use for Load<'_> {
    type Out = ();

    fn with<E: StorageEngine + 'static>(
        self,
        mode: Mode,
        open: impl Fn(&Path) -> stele_types::Result<E>,
    ) -> Result<()> {
        let Self(plan) = self;
        with_group(plan, mode, &plan.dir, open, |cluster| recovery::load_and_go_on(cluster, plan))
    }
}

struct Reopen<'a>(&'a Plan, &'a Path);

impl Use for Reopen<'_> {
    type Out = Vec<Value>;

    fn with<E: StorageEngine + 'static>(
        self,
        mode: Mode,
        open: impl Fn(&Path) -> stele_types::Result<E>,
    ) -> Result<Vec<Value>> {
        let Self(plan, dir) = self;
        recovery::reopen(plan, mode, dir, open)
    }
}

impl System {
    fn all(plan: &Plan) -> Vec<Self> {
        let sort_threshold_bytes = plan.sort_threshold_bytes;
        let stele = [
            ("nezha-nogc", Design::NezhaNoGc),
            ("nezha", Design::Nezha { sort_threshold_bytes }),
            ("stele", Design::Adaptive),
        ];
        let kind = |design: Design| Kind::Stele(Box::new(design.options_with(plan.buffers_bytes)));
        let mode = Mode::PRODUCT;
        let stele = stele.map(|(name, design)| Self { name, mode, kind: kind(design) });
        #[cfg(feature = "rocksdb")]
        let rock = {
            let rock = [
                ("original", mode, rocks::original(false)),
                ("original-sync", mode, rocks::original(true)),
                ("original-raft", Mode::RAFT, rocks::original(true)),
                ("original-cr", Mode::CR, rocks::original(true)),
                ("original-buc", Mode::BUC, rocks::original(true)),
                ("pasv", mode, rocks::pasv()),
                ("lsm-raft", mode, rocks::lsm_raft()),
                ("dwisckey", mode, rocks::dwisckey()),
            ];
            rock.map(|(name, mode, settings)| {
                let settings = settings.with_buffers(plan.buffers_bytes);
                Self { name, mode, kind: Kind::Rock(Box::new(settings)) }
            })
        };
        #[cfg(not(feature = "rocksdb"))]
        let rock: [Self; 0] = [];
        rock.into_iter().chain(stele).collect()
    }

    pub(super) fn chosen(args: &Args, plan: &Plan) -> Result<Vec<Self>> {
        let all = Self::all(plan);
        let Some(names) = args.text("systems") else {
            let is_usual = |it: &Self| it.mode == Mode::PRODUCT && it.name != "original-sync";
            return Ok(all.into_iter().filter(is_usual).collect());
        };
        let find = |name: &str| {
            let known: Vec<&str> = all.iter().map(|system| system.name).collect();
            let found = all.iter().find(|system| system.name == name).cloned();
            found.with_context(|| {
                format!("--systems: unknown system `{name}`; this build has {known:?}")
            })
        };
        names.split(',').map(find).collect()
    }

    pub(super) fn settings(&self) -> String {
        let mode = self.mode;
        match &self.kind {
            Kind::Stele(options) => format!("{mode:?}; {options:?}"),
            #[cfg(feature = "rocksdb")]
            Kind::Rock(settings) => format!(
                "{mode:?}; {:?}; key-values: {}; Raft log: {}",
                settings.persistence,
                settings.pair_options(),
                settings.raft_options()
            ),
        }
    }

    fn with<U: Use>(&self, what: U) -> Result<U::Out> {
        match &self.kind {
            Kind::Stele(options) => {
                what.with(self.mode, |dir| stele::open(dir, (**options).clone()))
            }
            #[cfg(feature = "rocksdb")]
            Kind::Rock(settings) => {
                let settings = settings.of_a_new_group();
                what.with(self.mode, |dir| RockStore::open(dir, &settings))
            }
        }
    }

    pub(super) fn measure(&self, plan: &Plan, phases: &[Phase], dir: &Path) -> Result<Vec<Value>> {
        self.with(Phases(plan, phases, dir))
    }

    /// Loads a new group and continues writing until killed.
    pub(super) fn load(&self, plan: &Plan) -> Result<()> {
        self.with(Load(plan))
    }

    pub(super) fn reopen(&self, plan: &Plan, dir: &Path) -> Result<Vec<Value>> {
        self.with(Reopen(plan, dir))
    }
}
