//! Commands of Redis on keys of one region, through the loops of three stores: each is one program.

use super::replicas::Group;
use super::{Batch, VALUE_BYTES};
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use stele_redis::{Protocol, RedisProgram, Request};
use stele_replica::Run;
use stele_types::Prng;

const COMMANDS: u64 = 64;
/// Names of each type.
const NAMES: u64 = 100;
/// Fields of a hash, and members of a set.
const FIELDS: u64 = 10;

/// Rounds of 64 commands: a quarter each of SET, INCR, HSET and SADD.
pub(super) struct RedisCommands {
    group: Group,
    prng: Prng,
    waiting: Vec<Run>,
    submitted: u64,
    executed: u64,
}

impl RedisCommands {
    pub(super) fn new() -> Result<Self> {
        let (group, prng) = (Group::of_one_region()?, Prng::new(1));
        Ok(Self { group, prng, waiting: Vec::new(), submitted: 0, executed: 0 })
    }

    fn command(&mut self, at: u64) -> Vec<Bytes> {
        let (name, field) = (self.prng.below(NAMES), self.prng.below(FIELDS));
        let value = || Bytes::from(vec![b'a' + (at % 26) as u8; VALUE_BYTES]);
        let words = match at % 4 {
            0 => ["SET".to_owned(), format!("string:{name}"), String::new()],
            1 => ["INCR".to_owned(), format!("number:{name}"), String::new()],
            2 => ["HSET".to_owned(), format!("hash:{name}"), format!("field:{field}")],
            _ => ["SADD".to_owned(), format!("set:{name}"), format!("member:{field}")],
        };
        let words = words.into_iter().filter(|word| !word.is_empty()).map(Bytes::from);
        words.chain(at.is_multiple_of(2).then(value)).collect()
    }
}

impl Batch for RedisCommands {
    fn prepare(&mut self) -> Result<()> {
        self.group.forget_events();
        for at in 0..COMMANDS {
            let request = Request::parse(0, self.command(at))?;
            let program = RedisProgram::new(vec![request], Protocol::Resp2, self.prng.draw())?;
            self.waiting.push(Run { header: Group::header(), program: Arc::new(program) });
        }
        Ok(())
    }

    fn run(&mut self) -> Result<u64> {
        let commands = self.waiting.len() as u64;
        self.executed = self.group.round(self.waiting.drain(..).map(Into::into))?;
        self.submitted += commands;
        Ok(commands)
    }

    fn check(&mut self) -> Result<()> {
        let (executed, submitted) = (self.executed, self.submitted);
        ensure!(executed == submitted, "{executed} of {submitted} commands were executed");
        self.group.check_one_region()
    }
}
