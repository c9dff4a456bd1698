//! `stele restore`: the state of a moment of a backup, into a cluster or an embedded store.

mod embedded;
mod key;

use crate::args::Restore as Args;
use crate::store::unix_seconds;
use crate::terminal::{self, Progress, print};
use crate::text::{parse, printable};
use crate::{Outcome, runtime};
use embedded::Embedded;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use stele_backup::format::{Base, Moment};
use stele_backup::restore::{
    ChosenMoment, ClusterTarget, MomentChoice, RestoreCounts, RestoreRules, RestoredKeys, Target,
    access_grants, apply_access, apply_settings, choose, clocks_ms, has_data, keys_by_bytes,
    keys_of_moment, parse_time, presplit, restore, time_text,
};
use stele_backup::{OpenOptions, Repository, install_tls_provider};
use stele_client::Client;
use stele_types::size::{counted, format_bytes};
use stele_types::{ColumnFamily, Error, KeyRange, MomentId, Result};

/// Interval at which the progress is drawn.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    install_tls_provider();
    runtime::large(0)?.block_on(async {
        let notice = |line: &str| eprintln!("stele: {line}");
        let options = OpenOptions { notice: Some(Arc::new(notice)), ..OpenOptions::default() };
        let repository = Repository::open(&args.from, &options).await?;
        match &args.of_key {
            Some(key) => key::run(args, &repository, key).await,
            None => Restoring::choose(args, repository).await?.run().await,
        }
    })
}

/// A restore of a chosen moment.
struct Restoring<'a> {
    args: &'a Args,
    repository: Arc<Repository>,
    chosen: ChosenMoment,
    moment: Moment,
    base: Base,
}

impl<'a> Restoring<'a> {
    async fn choose(args: &'a Args, repository: Repository) -> Result<Self> {
        let choice = match (args.moment, &args.to_time) {
            (Some(number), _) => MomentChoice::Number(MomentId(number)),
            (None, Some(time)) => MomentChoice::At(parse_time(time)?),
            (None, None) => MomentChoice::Newest,
        };
        let chosen = choose(&repository.moments().await?, choice)?;
        print(&chosen_text(&chosen));
        let moment = repository.moment(chosen.moment.run, chosen.moment.number).await?;
        let base = repository.base(chosen.base.name).await?;
        Ok(Self { args, repository: Arc::new(repository), chosen, moment, base })
    }

    async fn run(self) -> Result<Outcome> {
        let args = self.args;
        match &args.store {
            Some(dir) => self.write_store(dir).await,
            None if args.cluster.is_empty() => {
                print("nothing was written: name a target with --cluster or --store\n");
                self.print_catalogue(true, true);
                Ok(Outcome::Done)
            }
            None => self.write_cluster().await,
        }
    }

    async fn write_store(&self, dir: &Path) -> Result<Outcome> {
        let target = Arc::new(Embedded::create(dir, self.args.r#continue)?);
        self.write(&target, RestoredKeys::All).await?;
        self.print_catalogue(true, true);
        let is_used = || Error::Busy("a write of the restore has not ended".to_owned());
        let left_out = Arc::into_inner(target).ok_or_else(is_used)?.close()?;
        if left_out == 0 {
            return Ok(Outcome::Done);
        }
        eprintln!(
            "stele: {left_out} writes of the column families lock and write are left out: an embedded store has the \
             default one only"
        );
        Ok(Outcome::Failed)
    }

    async fn write_cluster(&self) -> Result<Outcome> {
        let args = self.args;
        let client = runtime::connect(&args.cluster, &args.tls).await?;
        let target = Arc::new(ClusterTarget::new(&client));
        let keys = match (&args.prefix, &args.redis_prefix) {
            (Some(prefix), _) => RestoredKeys::Raw(KeyRange::prefix(&parse(prefix, args.hex)?)),
            (_, Some(prefix)) => RestoredKeys::RedisNames(parse(prefix, args.hex)?.into()),
            (None, None) => RestoredKeys::All,
        };
        if keys == RestoredKeys::All {
            self.prepare(&client).await?;
        } else if !self.delete_before(&*target, &keys).await? {
            return Ok(Outcome::Failed);
        }
        self.write(&target, keys).await?;
        self.restore_catalogue(&client).await
    }

    /// Deletes the keys of a prefix, if that is agreed to.
    async fn delete_before(&self, target: &impl Target, keys: &RestoredKeys) -> Result<bool> {
        let (prefix, of) = match &self.args.redis_prefix {
            Some(prefix) => (&prefix[..], "Redis keys of all databases"),
            None => {
                (self.args.prefix.as_deref().unwrap_or_default(), "keys of RawKV's column families")
            }
        };
        let what = format!(
            "delete the {of} that begin with `{}`, then write those of moment {}; it is not atomic: meanwhile readers \
             find none or a part of them",
            printable(prefix.as_bytes()),
            self.moment.number
        );
        if !terminal::given(&what, self.args.yes)? {
            return Ok(false);
        }
        for family in ColumnFamily::ALL {
            for range in keys.ranges(family) {
                target.delete_range(family, range, keys).await?;
            }
        }
        Ok(true)
    }

    /// Refuses a cluster with data, and makes regions in one without.
    async fn prepare(&self, client: &Client) -> Result<()> {
        if self.args.r#continue {
            return Ok(());
        }
        // Invariant: no pair is overwritten that is not of this restore, unless the command line says so.
        // Tests: `a_backup_is_restored_into_a_cluster_a_prefix_and_a_store`.
        // bug cli.restore_over_data: never
        if has_data(client, &KeyRange::all()).await? {
            return Err(Error::Refused(format!(
                "the cluster has data; restore into a new one, replace keys with --prefix or --redis-prefix, or go on \
                 with an interrupted restore with --moment {} --continue",
                self.moment.number
            )));
        }
        let keys = match self.args.regions {
            Some(regions) => keys_by_bytes(&self.base, regions),
            None => keys_of_moment(&self.moment),
        };
        let regions = presplit(&client.control(), keys).await?;
        eprintln!("stele: the cluster has {}", counted(regions as u64, "region"));
        Ok(())
    }

    async fn write<T: Target>(&self, target: &Arc<T>, keys: RestoredKeys) -> Result<()> {
        let shifts = self.args.shift_expiry;
        let rules = RestoreRules {
            compares: self.args.r#continue,
            ..RestoreRules::new(keys, unix_seconds(), &self.moment, shifts)
        };
        let counts = Arc::new(RestoreCounts::default());
        let started = Instant::now();
        let total = self.chosen.base.bytes + self.chosen.moment.log_bytes;
        let progress = Progress::bytes(Some(total), "restoring");
        let (repository, target) = (Arc::clone(&self.repository), Arc::clone(target));
        let of = (&self.base, &self.moment);
        let restoring = restore(repository, target, of, rules, Arc::clone(&counts));
        tokio::pin!(restoring);
        let (mut ticks, mut shown) = (tokio::time::interval(PROGRESS_INTERVAL), 0);
        loop {
            tokio::select! {
                restored = &mut restoring => break restored?,
                _ = ticks.tick() => {
                    let bytes = counts.bytes.load(Relaxed);
                    progress.add(bytes - shown);
                    shown = bytes;
                }
            }
        }
        drop(progress);
        eprintln!("{}", restored_text(&counts, started.elapsed()));
        Ok(())
    }

    async fn restore_catalogue(&self, client: &Client) -> Result<Outcome> {
        let args = self.args;
        let control = client.control();
        let mut outcome = Outcome::Done;
        if args.with_settings
            && let Some(address) = args.cluster.first()
        {
            for refused in apply_settings(&control, address, &self.base.settings).await? {
                eprintln!("stele: a setting was refused: {refused}");
                outcome = Outcome::Failed;
            }
        }
        if args.with_access
            && let Some(access) = &self.base.access
        {
            for name in apply_access(&control, access_grants(access)?).await? {
                eprintln!(
                    "stele: {name} needs a new token: make one with `stele ctl access token`"
                );
                outcome = Outcome::Failed;
            }
        }
        self.print_catalogue(!args.with_settings, !args.with_access);
        Ok(outcome)
    }

    /// Prints the settings and access rules that were recorded, and are not set.
    fn print_catalogue(&self, settings: bool, access: bool) {
        if settings {
            for (name, value) in &self.base.settings {
                print(&format!("setting {name} = {value}\n"));
            }
        }
        if let Some(text) = self.base.access.as_ref().filter(|_| access) {
            print(&format!("access {text}\n"));
        }
    }
}

/// Describes the moment: its time, the spread of the clocks, and the next one.
fn chosen_text(chosen: &ChosenMoment) -> String {
    let time = |clocks: Option<(u64, u64)>| match clocks {
        Some((earliest, latest)) => {
            format!(
                "{}, the clocks of its nodes differ by {} ms",
                time_text(latest),
                latest - earliest
            )
        }
        None => "without a time".to_owned(),
    };
    let next = match &chosen.next {
        Some(next) => format!("the next is moment {} at {}", next.number, time(clocks_ms(next))),
        None => "it is the last one".to_owned(),
    };
    let moment = &chosen.moment;
    let logs = moment.last_log.0.saturating_sub(chosen.base.log_from.0) + 1;
    format!(
        "moment {} at {}; {next}\nbase {} with {} and {}, {} with {}\n",
        moment.number,
        time(clocks_ms(moment)),
        chosen.base.name,
        counted(chosen.base.pairs, "pair"),
        format_bytes(chosen.base.bytes),
        counted(logs, "log object"),
        format_bytes(moment.log_bytes),
    )
}

fn restored_text(counts: &RestoreCounts, elapsed: Duration) -> String {
    let (bytes, seconds) = (counts.bytes.load(Relaxed), elapsed.as_secs_f64());
    let present = match counts.present.load(Relaxed) {
        0 => String::new(),
        present => format!("; the cluster had {}", counted(present, "pair")),
    };
    format!(
        "restored {} of the base and {} of the log: {} in {seconds:.1} s, {}/s; {} of the base had expired{present}",
        counted(counts.pairs.load(Relaxed), "pair"),
        counted(counts.records.load(Relaxed), "record"),
        format_bytes(bytes),
        format_bytes((bytes as f64 / seconds.max(1e-3)) as u64),
        counts.expired.load(Relaxed),
    )
}
