//! What the kernel counted for processes, from `/proc`.

use stele_types::{Error, Result};

/// Bytes this process caused to be fetched from and sent to devices. Zero where the system does not
/// tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessIo {
    pub read_bytes: u64,
    pub write_bytes: u64,
}

impl ProcessIo {
    /// Of this process.
    pub fn now() -> Self {
        std::fs::read_to_string("/proc/self/io").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Of another process.
    pub fn of(pid: u32) -> Result<Self> {
        Ok(Self::parse(&read(pid, "io")?))
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(": ")?.trim().parse().ok()
        };
        Self {
            read_bytes: field("read_bytes").unwrap_or(0),
            write_bytes: field("write_bytes").unwrap_or(0),
        }
    }
}

/// Processor time in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    pub user: u64,
    pub system: u64,
}

impl Ticks {
    pub fn all(self) -> u64 {
        self.user + self.system
    }

    pub fn plus(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }

    /// What came since `then`; none where less is counted now.
    pub fn since(self, then: Self) -> Self {
        let user = self.user.saturating_sub(then.user);
        Self { user, system: self.system.saturating_sub(then.system) }
    }

    /// In all.
    pub fn seconds(self) -> f64 {
        seconds(self.all())
    }
}

pub fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// A process or a thread, as the kernel counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// At most 15 bytes.
    pub name: String,
    pub ticks: Ticks,
    /// When it started, in ticks since the machine did. With its number it is one of its kind: numbers are
    /// given out again.
    pub started: u64,
}

impl Task {
    /// A process, with all its threads, also those that have ended.
    pub fn process(pid: u32) -> Result<Self> {
        Self::parse(&read(pid, "stat")?, &format!("/proc/{pid}/stat"))
    }

    /// The threads of a process by their numbers, without those that end meanwhile.
    pub fn threads(pid: u32) -> Result<Vec<(u32, Self)>> {
        let folder = format!("/proc/{pid}/task");
        let failed = |error| Error::io("read", &folder, error);
        let mut threads = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            let (Some(number), Ok(text)) = (number, std::fs::read(path.join("stat"))) else {
                continue;
            };
            let text = String::from_utf8_lossy(&text);
            threads.push((number, Self::parse(&text, &path.display().to_string())?));
        }
        Ok(threads)
    }

    /// The name, in parentheses, may contain anything, also parentheses: the last one ends it.
    fn parse(text: &str, path: &str) -> Result<Self> {
        let task = || {
            let (name, fields) = text.split_once('(')?.1.rsplit_once(')')?;
            // Field 3 is the first after the name: 14, 15 and 22 are meant.
            let mut fields = fields.split_ascii_whitespace().skip(11).map(|it| it.parse().ok());
            let ticks = Ticks { user: fields.next()??, system: fields.next()?? };
            Some(Self { name: name.to_owned(), ticks, started: fields.nth(6)?? })
        };
        task().ok_or_else(|| Error::invalid(format!("{path} reads otherwise than expected")))
    }
}

/// Seconds of processor time that a process has used.
pub fn processor_seconds(pid: u32) -> Result<f64> {
    Ok(Task::process(pid)?.ticks.seconds())
}

fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    let bytes = std::fs::read(&path).map_err(|error| Error::io("read", path, error))?;
    // A name may have been cut off within a character.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn device_bytes_are_told_from_those_of_calls() {
        let text = "rchar: 9\nwchar: 8\nsyscr: 7\nsyscw: 6\nread_bytes: 4096\nwrite_bytes: 8192\n\
                    cancelled_write_bytes: 5\n";
        assert_eq!(ProcessIo::parse(text), ProcessIo { read_bytes: 4096, write_bytes: 8192 });
        assert_eq!(ProcessIo::parse(""), ProcessIo::default());
    }

    #[test]
    fn a_task_is_read_whatever_its_name() {
        let rest = "S 1 1 1 0 -1 4194304 102 0 0 0 17 4 0 0 20 0 9 0 3261954 3133440 390";
        for name in ["stele-store-1", "a b", "a) R 1 (b", "()", ")", "", "x\ny"] {
            let task = Task::parse(&format!("25179 ({name}) {rest}"), "stat").unwrap();
            let ticks = Ticks { user: 17, system: 4 };
            assert_eq!(task, Task { name: name.to_owned(), ticks, started: 3_261_954 });
        }
        for text in
            ["", "1 (a", "1 a) S", "1 (a) S 1 2", &format!("1 (a) {}", rest.replace("17", "x"))]
        {
            let error = Task::parse(text, "/proc/1/stat").unwrap_err().to_string();
            assert!(error.contains("/proc/1/stat reads otherwise"), "{error}");
        }
    }

    #[test]
    fn threads_are_found_by_their_names() {
        let named = std::thread::Builder::new().name("a) odd (name".to_owned());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = named.spawn(move || ended.recv()).unwrap();
        let found = || Task::threads(std::process::id()).unwrap();
        // The thread names itself when it has begun.
        let began = std::time::Instant::now();
        while !found().iter().any(|(_, task)| task.name == "a) odd (name") {
            assert!(began.elapsed().as_secs() < 60);
        }
        drop(end);
        thread.join().unwrap().unwrap_err();
    }

    #[test]
    fn processor_time_of_this_process_grows() {
        let pid = std::process::id();
        let before = processor_seconds(pid).unwrap();
        let began = std::time::Instant::now();
        while processor_seconds(pid).unwrap() - before < 0.05 {
            assert!(began.elapsed().as_secs() < 60);
        }
    }
}
