//! Random sequences over all families of commands, with the values at their limits.

use super::sequence::{Command, Sequence, Word};
use super::servers::Features;
use super::values::{FIELDS, NUMBERS, OF_CONNECTION, PATTERNS, PLACES, TEXTS, WRONG};

/// Random numbers from a seed (splitmix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Returns the sequence of a seed.
pub(super) fn sequence(seed: u64, features: Features) -> Sequence {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5bd1_e995);
    let names = (0..3 + rng.below(4)).map(|place| name(&mut rng, seed, place)).collect();
    let protocol = if rng.percent(50) { 3 } else { 2 };
    let mut generator = Generator { rng, features, names, times: 0, commands: Vec::new() };
    let commands = 10 + generator.rng.below(31);
    while generator.commands.len() < commands {
        generator.add();
    }
    let Generator { names, commands, .. } = generator;
    Sequence { seed, protocol, names, commands }.without_refused()
}

fn name(rng: &mut Rng, seed: u64, place: usize) -> Vec<u8> {
    match rng.below(12) {
        0..5 => format!("k{place}:{seed}").into_bytes(),
        5..8 => format!("{{t{seed}}}:{place}").into_bytes(),
        8 => format!("{{}}{seed}{place}").into_bytes(),
        9 => format!("a{{t{seed}}}{place}").into_bytes(),
        10 => [&[0, 0xff, b'\r', b'\n'], format!("{seed}.{place}").as_bytes()].concat(),
        _ if place == 0 => Vec::new(),
        _ => format!("{seed}*[{place}").into_bytes(),
    }
}

struct Generator {
    rng: Rng,
    features: Features,
    names: Vec<Vec<u8>>,
    /// Expiries so far. Each is another time, so that no two are compared that are equal up to the delay of a
    /// command.
    times: i64,
    commands: Vec<Command>,
}

type Words = Vec<Word>;

fn words(text: &str) -> Words {
    text.split(' ').map(Word::from).collect()
}

impl Generator {
    /// Adds a command, or those of a transaction.
    fn add(&mut self) {
        let connection = usize::from(self.rng.percent(7));
        if self.rng.percent(8) {
            return self.add_transaction(connection);
        }
        self.add_command(connection);
    }

    fn add_transaction(&mut self, connection: usize) {
        if self.rng.percent(50) {
            let watch = self.with_names("WATCH", 2);
            let mut exist = watch.clone();
            exist[0] = "EXISTS".into();
            self.push(connection, exist);
            self.push(connection, watch);
            for _ in 0..self.rng.below(3) {
                let other = if self.rng.percent(60) { 1 - connection } else { connection };
                self.add_command(other);
            }
        }
        self.push(connection, words("MULTI"));
        for _ in 0..1 + self.rng.below(6) {
            let other = if self.rng.percent(10) { 1 - connection } else { connection };
            self.add_command(other);
        }
        let end = match self.rng.below(10) {
            0 => "DISCARD",
            1 => "EXEC extra",
            2 => return,
            _ => "EXEC",
        };
        self.push(connection, words(end));
    }

    fn push(&mut self, connection: usize, words: Words) {
        self.commands.push(Command { connection, words, drained_cursor: None });
    }

    fn add_command(&mut self, connection: usize) {
        let (mut words, is_of_keys) = match self.rng.below(100) {
            0..30 => (self.of_strings(), true),
            30..40 => (self.of_numbers(), true),
            40..52 => (self.of_names(), true),
            52..62 => (self.of_expiry(), true),
            62..76 => (self.of_hashes(), true),
            76..86 => (self.of_sets(), true),
            86..91 => return self.add_scan(connection),
            _ => (self.of_connection(), false),
        };
        if is_of_keys && self.rng.percent(5) {
            self.spoil(&mut words);
        }
        self.push(connection, words);
    }

    /// Changes the number of words, or one of them.
    fn spoil(&mut self, words: &mut Words) {
        match self.rng.below(3) {
            0 if words.len() > 1 => {
                words.pop();
            }
            1 if words.len() > 1 => {
                let place = 1 + self.rng.below(words.len() - 1);
                // All names must be known, to compare and delete the keys at the end.
                let is_name =
                    |word: &Word| matches!(word, Word::Bytes(it) if self.names.contains(it));
                if !is_name(&words[place]) {
                    words[place] = (*self.rng.pick(&WRONG)).into();
                }
            }
            _ => words.push((*self.rng.pick(&WRONG)).into()),
        }
    }

    fn name(&mut self) -> Word {
        self.rng.pick(&self.names).clone().into()
    }

    fn field(&mut self) -> Word {
        (*self.rng.pick(&FIELDS)).into()
    }

    fn place(&mut self) -> Word {
        (*self.rng.pick(&PLACES)).into()
    }

    fn number(&mut self) -> Word {
        match self.rng.percent(60) {
            true => (self.rng.below(2_000) as i64 - 1_000).into(),
            false => (*self.rng.pick(&NUMBERS)).into(),
        }
    }

    fn float(&mut self) -> Word {
        match self.rng.below(10) {
            0..5 => (*self.rng.pick(&NUMBERS)).into(),
            5..8 => {
                let digits = self.rng.next() as i64;
                let text = (digits as f64 / 10f64.powi(self.rng.below(24) as i32)).to_string();
                text.as_str().into()
            }
            _ => {
                let text =
                    format!("{}e{}", self.rng.below(100_000), self.rng.below(60) as i64 - 30);
                text.as_str().into()
            }
        }
    }

    fn value(&mut self) -> Word {
        match self.rng.below(10) {
            0..3 => (*self.rng.pick(&TEXTS)).into(),
            3..8 => self.number(),
            8 => self.float(),
            _ => vec![b'x'; self.rng.below(300)].into(),
        }
    }

    fn with_names(&mut self, command: &str, most: usize) -> Words {
        let mut all = words(command);
        for _ in 0..1 + self.rng.below(most) {
            all.push(self.name());
        }
        all
    }

    /// Returns seconds that no other expiry of the sequence has.
    fn seconds(&mut self) -> i64 {
        self.times += 1;
        10_000 + self.times * 1_000
    }

    fn of_strings(&mut self) -> Words {
        let mut all: Words;
        match self.rng.below(22) {
            0..3 => return self.with_names("GET", 1),
            3..8 => return self.set(),
            8 => {
                let command = if self.rng.percent(50) { "SETNX" } else { "GETSET" };
                all = self.with_names(command, 1);
                all.push(self.value());
            }
            9 => {
                let is_seconds = self.rng.percent(50);
                all = self.with_names(if is_seconds { "SETEX" } else { "psetex" }, 1);
                all.push(self.relative(is_seconds));
                all.push(self.value());
            }
            10 => return self.with_names("GETDEL", 1),
            11..13 => {
                all = self.with_names("GETEX", 1);
                all.extend(self.expiry_options(false));
            }
            13 if self.features.has_delex => {
                all = self.with_names("DELEX", 1);
                if self.rng.percent(60) {
                    all.push((*self.rng.pick(&["IFEQ", "IFNE"])).into());
                    all.push(self.value());
                }
            }
            13 | 14 => return self.with_names("MGET", 4),
            15 | 16 => {
                all = words(if self.rng.percent(60) { "MSET" } else { "MSETNX" });
                for _ in 0..1 + self.rng.below(3) {
                    all.push(self.name());
                    all.push(self.value());
                }
            }
            17 => {
                all = self.with_names("APPEND", 1);
                all.push(self.value());
            }
            18 => return self.with_names("STRLEN", 1),
            19 => {
                all = self.with_names("GETRANGE", 1);
                all.push(self.place());
                all.push(self.place());
            }
            _ => {
                all = self.with_names("SETRANGE", 1);
                let offsets = ["0", "1", "5", "40", "-1", "536870912", "9223372036854775807", "x"];
                all.push((*self.rng.pick(&offsets)).into());
                all.push(self.value());
            }
        }
        all
    }

    fn set(&mut self) -> Words {
        let mut all = self.with_names("SET", 1);
        all.push(self.value());
        if self.rng.percent(35) {
            return all;
        }
        let conditions =
            ["NX", "XX", "nx", "xx", "GET", "NX GET", "XX GET", "NX XX", "GET GET", "XX XX"];
        if self.rng.percent(60) {
            all.extend(words(self.rng.pick::<&str>(&conditions)));
        }
        if self.features.has_ifeq && self.rng.percent(25) {
            all.push("IFEQ".into());
            if self.rng.percent(95) {
                all.push(self.value());
            }
        }
        if self.rng.percent(50) {
            all.extend(self.expiry_options(true));
        }
        all
    }

    /// Returns seconds or milliseconds from now, seldom out of range.
    fn relative(&mut self, is_seconds: bool) -> Word {
        let wrong = [
            "0",
            "-1",
            "-100",
            "abc",
            "",
            "1.5",
            "9223372036854775807",
            "9223372036854775808",
            "9223372036854775",
            "-9223372036854775808",
        ];
        if self.rng.percent(20) {
            return (*self.rng.pick(&wrong)).into();
        }
        let seconds = self.seconds();
        if is_seconds { seconds.into() } else { (seconds * 1_000 + 123).into() }
    }

    /// Returns a Unix time, far away or in the past.
    fn absolute(&mut self, is_seconds: bool) -> Word {
        match self.rng.below(10) {
            0 => "1".into(),
            1 => self.relative(true),
            2 => (*self.rng.pick(&["9223372036854775807", "9223372036854774", "0", "-5"])).into(),
            _ => {
                let seconds = 4_000_000_000 + self.rng.below(5) as i64;
                if is_seconds { seconds.into() } else { (seconds * 1_000 + 499).into() }
            }
        }
    }

    fn expiry_options(&mut self, is_set: bool) -> Words {
        let mut all = Words::new();
        let count = match self.rng.below(20) {
            0 => 2,
            1 => 0,
            _ => 1,
        };
        for _ in 0..count {
            let option = *self.rng.pick(&["EX", "PX", "EXAT", "PXAT", "px", "KEEPTTL", "PERSIST"]);
            // The other command's option is a syntax error.
            let is_of_other = option == if is_set { "PERSIST" } else { "KEEPTTL" };
            if is_of_other && self.rng.percent(80) {
                continue;
            }
            all.push(option.into());
            if self.rng.percent(3) {
                continue;
            }
            match option {
                "EX" => all.push(self.relative(true)),
                "PX" | "px" => all.push(self.relative(false)),
                "EXAT" => all.push(self.absolute(true)),
                "PXAT" => all.push(self.absolute(false)),
                _ => {}
            }
        }
        all
    }

    fn of_numbers(&mut self) -> Words {
        let command =
            *self.rng.pick(&["INCR", "DECR", "INCRBY", "DECRBY", "INCRBYFLOAT", "INCRBYFLOAT"]);
        let mut all = self.with_names(command, 1);
        match command {
            "INCRBY" | "DECRBY" => all.push(self.number()),
            "INCRBYFLOAT" => all.push(self.float()),
            _ => {}
        }
        all
    }

    fn of_names(&mut self) -> Words {
        let many = ["DEL", "UNLINK", "EXISTS", "TOUCH"];
        match self.rng.below(10) {
            0..4 => {
                let command = *self.rng.pick(&many);
                self.with_names(command, 3)
            }
            4 | 5 => self.with_names("TYPE", 1),
            6 | 7 => {
                let mut all = self.with_names(self.rename(), 1);
                all.push(self.name());
                all
            }
            _ => self.copy(),
        }
    }

    fn rename(&self) -> &'static str {
        if self.commands.len().is_multiple_of(2) { "RENAME" } else { "RENAMENX" }
    }

    fn copy(&mut self) -> Words {
        let mut all = self.with_names("COPY", 1);
        all.push(self.name());
        if self.rng.percent(40) {
            all.push("DB".into());
            let wrong = ["-1", "16", "abc", "9223372036854775807", "2147483648"];
            match self.rng.below(6) {
                0 => all.push((*self.rng.pick(&wrong)).into()),
                1 if self.rng.percent(20) => {}
                _ => all.push(Word::Database(self.rng.below(2) as u8)),
            }
        }
        if self.rng.percent(50) {
            all.push("REPLACE".into());
        }
        all
    }

    fn of_expiry(&mut self) -> Words {
        let reads = ["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME", "PERSIST"];
        if self.rng.percent(45) {
            let command = *self.rng.pick(&reads);
            return self.with_names(command, 1);
        }
        let command = *self.rng.pick(&["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"]);
        let mut all = self.with_names(command, 1);
        let is_seconds = !command.starts_with('P');
        all.push(match command.ends_with("AT") {
            true => self.absolute(is_seconds),
            false => self.relative(is_seconds),
        });
        if self.rng.percent(50) {
            let options = [
                "NX", "XX", "GT", "LT", "gt", "NX XX", "GT LT", "XX GT", "XX LT", "NX GT", "AB",
                "GT GT",
            ];
            all.extend(words(self.rng.pick::<&str>(&options)));
        }
        all
    }

    /// Returns a command with many members: the servers store them in other forms, and scan them in pages.
    fn large(&mut self, command: &str) -> Words {
        let mut all = self.with_names(command, 1);
        for member in 0..*self.rng.pick(&[130, 150, 300, 600]) {
            all.push(format!("m{member}").as_str().into());
            if command == "HSET" {
                all.push(self.number());
            }
        }
        all
    }

    fn of_hashes(&mut self) -> Words {
        if self.rng.percent(1) {
            return self.large("HSET");
        }
        let command = *self.rng.pick(&[
            "HSET",
            "HSET",
            "HSET",
            "HMSET",
            "HSETNX",
            "HGET",
            "HMGET",
            "HGETALL",
            "HDEL",
            "HDEL",
            "HEXISTS",
            "HLEN",
            "HSTRLEN",
            "HKEYS",
            "HVALS",
            "HINCRBY",
            "HINCRBYFLOAT",
        ]);
        let mut all = self.with_names(command, 1);
        match command {
            "HSET" | "HMSET" => {
                for _ in 0..1 + self.rng.below(3) {
                    all.push(self.field());
                    all.push(self.value());
                }
            }
            "HSETNX" => all.extend([self.field(), self.value()]),
            "HMGET" | "HDEL" => {
                for _ in 0..1 + self.rng.below(3) {
                    all.push(self.field());
                }
            }
            "HGET" | "HEXISTS" | "HSTRLEN" => all.push(self.field()),
            "HINCRBY" => all.extend([self.field(), self.number()]),
            "HINCRBYFLOAT" => all.extend([self.field(), self.float()]),
            _ => {}
        }
        all
    }

    fn of_sets(&mut self) -> Words {
        if self.rng.percent(1) {
            return self.large("SADD");
        }
        let command = *self.rng.pick(&[
            "SADD",
            "SADD",
            "SADD",
            "SREM",
            "SISMEMBER",
            "SMISMEMBER",
            "SMEMBERS",
            "SCARD",
        ]);
        let mut all = self.with_names(command, 1);
        match command {
            "SADD" | "SREM" | "SMISMEMBER" => {
                for _ in 0..1 + self.rng.below(4) {
                    all.push(self.value());
                }
            }
            "SISMEMBER" => all.push(self.value()),
            _ => {}
        }
        all
    }

    /// Adds a command of a whole database, or a scan of a name.
    fn add_scan(&mut self, connection: usize) {
        let command = *self.rng.pick(&[
            "SCAN",
            "SCAN",
            "HSCAN",
            "HSCAN",
            "SSCAN",
            "KEYS",
            "DBSIZE",
            "RANDOMKEY",
            "FLUSHDB",
        ]);
        let mut all = words(command);
        match command {
            "FLUSHDB" => {
                all.extend(words(self.rng.pick::<&str>(&["ASYNC", "SYNC", "X", "SYNC X"])))
            }
            "KEYS" => all.push((*self.rng.pick(&PATTERNS)).into()),
            "HSCAN" | "SSCAN" => all.push(self.name()),
            _ => {}
        }
        if !command.ends_with("SCAN") {
            return self.push(connection, all);
        }
        let cursor_at = all.len();
        let is_drained = self.rng.percent(90);
        let cursors = ["abc", "-1", "", "1.5", "99999999999999999999"];
        all.push(if is_drained { "0".into() } else { (*self.rng.pick(&cursors)).into() });
        for _ in 0..self.rng.below(3) {
            match self.rng.below(4) {
                0 => {
                    all.push("MATCH".into());
                    all.push((*self.rng.pick(&PATTERNS)).into());
                }
                1 => {
                    all.push("COUNT".into());
                    all.push(
                        (*self.rng.pick(&["1", "10", "1000", "100000", "0", "-1", "a"])).into(),
                    );
                }
                2 if command == "HSCAN" => all.push("NOVALUES".into()),
                2 if command == "SCAN" => {
                    all.push("TYPE".into());
                    let kinds = ["string", "hash", "SET", "list", "zset", "stream", "set"];
                    all.push((*self.rng.pick(&kinds)).into());
                }
                3 if self.rng.percent(20) => {
                    all.push((*self.rng.pick(&["NOVALUES", "X", "MATCH"])).into())
                }
                _ => {}
            }
        }
        let drained_cursor = is_drained.then_some(cursor_at);
        self.commands.push(Command { connection, words: all, drained_cursor });
    }

    fn of_connection(&mut self) -> Words {
        if self.rng.percent(20) {
            return vec!["SELECT".into(), Word::Database(self.rng.below(2) as u8)];
        }
        words(self.rng.pick::<&str>(&OF_CONNECTION))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_sequence_and_each_command_is_in_some() {
        let features = Features { has_ifeq: true, has_delex: true };
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..2_000 {
            let sequence = sequence(seed, features);
            assert_eq!(sequence.commands, super::sequence(seed, features).commands);
            seen.extend(sequence.commands.iter().map(|command| command.lower(0)));
        }
        for name in ["set", "delex", "hincrbyfloat", "sscan", "randomkey", "watch", "exec", "copy"]
        {
            assert!(seen.contains(name.as_bytes()), "{name}");
        }
        let without = Features { has_ifeq: false, has_delex: false };
        let commands = (0..500).flat_map(|seed| sequence(seed, without).commands);
        assert!(commands.into_iter().all(|command| !command.is("delex")));
    }
}
