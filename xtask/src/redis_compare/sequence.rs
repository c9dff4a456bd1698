//! Sequences of commands that two servers execute.

use std::fmt::Write;

/// Word of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Bytes(Vec<u8>),
    /// Number of one of the two databases of a sequence. Sequences that run at the same time have others.
    Database(u8),
}

impl From<&str> for Word {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Word {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<i64> for Word {
    fn from(number: i64) -> Self {
        Self::Bytes(number.to_string().into_bytes())
    }
}

/// Command of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// Which of the two connections of the sequence sends it.
    pub connection: usize,
    pub words: Vec<Word>,
    /// Place of the cursor among the words, if the command is repeated until the cursor is 0.
    pub drained_cursor: Option<usize>,
}

impl Command {
    pub(super) fn of(connection: usize, words: &[&str]) -> Self {
        let words = words.iter().map(|&word| word.into()).collect();
        Self { connection, words, drained_cursor: None }
    }

    /// Returns the words. The first of the sequence's databases has the number `first_database`.
    pub(super) fn rendered(&self, first_database: u8) -> Vec<Vec<u8>> {
        let words = self.words.iter().map(|word| match word {
            Word::Bytes(bytes) => bytes.clone(),
            Word::Database(number) => (first_database + number).to_string().into_bytes(),
        });
        words.collect()
    }

    /// Returns a word in small letters; empty if there are fewer words.
    pub(super) fn lower(&self, place: usize) -> Vec<u8> {
        match self.words.get(place) {
            Some(Word::Bytes(bytes)) => bytes.to_ascii_lowercase(),
            _ => Vec::new(),
        }
    }

    /// Whether the command has this name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.lower(0) == name.as_bytes()
    }

    pub(super) fn is_one_of(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.is(name))
    }

    /// Formats the command as redis-cli reads it, with the number of its connection.
    pub(super) fn shown(&self, first_database: u8) -> String {
        let mut text = format!("{}>", self.connection);
        for word in self.rendered(first_database) {
            // Writing to a string cannot fail.
            let _ = match word.iter().all(u8::is_ascii_graphic) && !word.is_empty() {
                true => write!(text, " {}", word.escape_ascii()),
                false => write!(text, " \"{}\"", word.escape_ascii()),
            };
        }
        text + if self.drained_cursor.is_some() { " (until the cursor is 0)" } else { "" }
    }
}

/// Commands that Stele refuses between MULTI and EXEC.
const ALONE: [&str; 8] =
    ["scan", "keys", "dbsize", "randomkey", "flushdb", "flushall", "hscan", "sscan"];

/// Random commands of a seed.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub seed: u64,
    /// Version of the protocol.
    pub protocol: u8,
    /// Names of the keys.
    pub names: Vec<Vec<u8>>,
    pub commands: Vec<Command>,
}

impl Sequence {
    /// Returns the commands after which nothing of another sequence is left on the connections.
    pub(super) fn before(&self) -> Vec<Command> {
        let mut commands = Vec::new();
        for connection in 0..2 {
            commands.push(Command::of(connection, &["RESET"]));
            if self.protocol == 3 {
                commands.push(Command::of(connection, &["HELLO", "3"]));
            }
            commands.push(select(connection, 0));
        }
        commands
    }

    /// Returns the commands that read all keys by the commands of their types, and then delete them.
    pub(super) fn after(&self) -> Vec<Command> {
        let mut commands = vec![Command::of(0, &["RESET"])];
        if self.protocol == 3 {
            commands.push(Command::of(0, &["HELLO", "3"]));
        }
        let is_used = |database: &u8| {
            self.commands.iter().any(|it| it.words.contains(&Word::Database(*database)))
        };
        for database in (0..2).filter(|database| *database == 0 || is_used(database)) {
            commands.push(select(0, database));
            for name in &self.names {
                for read in ["GET", "HGETALL", "SMEMBERS", "PEXPIRETIME"] {
                    let mut command = Command::of(0, &[read]);
                    command.words.push(name.clone().into());
                    commands.push(command);
                }
            }
            let mut delete = Command::of(0, &["DEL"]);
            delete.words.extend(self.names.iter().cloned().map(Word::from));
            commands.push(delete);
        }
        commands
    }

    /// Removes the commands that differ in a transaction. Those of whole databases are refused there, scripts are
    /// refused when they are queued, and the protocol changes only after EXEC. Redis leaves out the reply to a
    /// failed AUTH.
    pub(super) fn without_refused(mut self) -> Self {
        let mut is_open = [false; 2];
        self.commands.retain(|command| {
            let Some(is_open) = is_open.get_mut(command.connection) else { return false };
            if *is_open
                && (command.is_one_of(&ALONE)
                    || command.is_one_of(&["auth", "hello", "eval", "evalsha"]))
            {
                return false;
            }
            let arguments = command.words.len();
            match command.lower(0).as_slice() {
                b"multi" if arguments == 1 => *is_open = true,
                b"exec" | b"discard" | b"reset" if arguments == 1 => *is_open = false,
                _ => {}
            }
            true
        });
        self
    }
}

fn select(connection: usize, database: u8) -> Command {
    let words = vec!["SELECT".into(), Word::Database(database)];
    Command { connection, words, drained_cursor: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_are_not_part_of_transactions() {
        let words =
            [&["SCAN", "0"][..], &["MULTI"], &["scan", "0"], &["GET", "a"], &["HELLO", "3"]];
        let mut commands: Vec<Command> = words.map(|words| Command::of(1, words)).into();
        commands.extend([Command::of(0, &["KEYS", "*"]), Command::of(1, &["EXEC"])]);
        commands.push(Command::of(1, &["DBSIZE"]));
        let sequence = Sequence { seed: 0, protocol: 2, names: Vec::new(), commands };
        let shown: Vec<String> =
            sequence.without_refused().commands.iter().map(|command| command.shown(0)).collect();
        let expected = ["1> SCAN 0", "1> MULTI", "1> GET a", "0> KEYS *", "1> EXEC", "1> DBSIZE"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn databases_are_those_of_the_pair() {
        assert_eq!(select(0, 1).shown(6), "0> SELECT 7");
        let words = vec!["SET".into(), Word::Bytes(vec![0, b'a']), "".into()];
        let command = Command { connection: 1, words, drained_cursor: None };
        assert_eq!(command.shown(0), "1> SET \"\\x00a\" \"\"");
    }
}
