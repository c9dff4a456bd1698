//! Counters of the kernel for processes and threads, from `/proc`.

use stele_types::{Error, Result};

/// Bytes that a process read from and wrote to devices; zero where the system does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessIo {
    /// Read from devices.
    pub read_bytes: u64,
    /// Written to devices.
    pub write_bytes: u64,
}

impl ProcessIo {
    /// Reads the counters of this process; zero if they cannot be read.
    pub fn now() -> Self {
        std::fs::read_to_string("/proc/self/io").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Reads the counters of another process.
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

/// Processor time in clock ticks of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// In the program.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
}

impl Ticks {
    /// Returns user and system time together.
    pub fn all(self) -> u64 {
        self.user + self.system
    }

    /// Returns the sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }

    /// Returns the ticks since `then`; zero if the counter decreased.
    pub fn since(self, then: Self) -> Self {
        let user = self.user.saturating_sub(then.user);
        Self { user, system: self.system.saturating_sub(then.system) }
    }

    /// Returns user and system time together, in seconds.
    pub fn seconds(self) -> f64 {
        seconds(self.all())
    }
}

/// Returns the seconds of so many ticks.
pub fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Statistics of a process or a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Name, truncated by the kernel to 15 bytes.
    pub name: String,
    /// Processor time since it started.
    pub ticks: Ticks,
    /// Start time in ticks since boot. With the ID it identifies the task: the kernel reuses IDs.
    pub started: u64,
}

impl Task {
    /// Reads a process. The time includes all its threads, also those that have ended.
    pub fn process(pid: u32) -> Result<Self> {
        Self::parse(&read(pid, "stat")?, &format!("/proc/{pid}/stat"))
    }

    /// Reads the threads of a process by ID; omits those that end meanwhile.
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

    /// Parses a `stat` line. The name, in parentheses, may itself contain parentheses: the last one
    /// ends it.
    fn parse(text: &str, path: &str) -> Result<Self> {
        let task = || {
            let (name, fields) = text.split_once('(')?.1.rsplit_once(')')?;
            // Field 3 is the first after the name; fields 14, 15 and 22 are read.
            let mut fields = fields.split_ascii_whitespace().skip(11).map(|it| it.parse().ok());
            let ticks = Ticks { user: fields.next()??, system: fields.next()?? };
            Some(Self { name: name.to_owned(), ticks, started: fields.nth(6)?? })
        };
        task().ok_or_else(|| Error::invalid(format!("{path} has an unexpected format")))
    }
}

/// Returns the processor time that a process has used, in seconds.
pub fn processor_seconds(pid: u32) -> Result<f64> {
    Ok(Task::process(pid)?.ticks.seconds())
}

/// Reads a file of a process in `/proc`, such as `stat`.
pub fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    let bytes = std::fs::read(&path).map_err(|error| Error::io("read", path, error))?;
    // The kernel may truncate a name within a character.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn device_bytes_are_distinguished_from_those_of_calls() {
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
            assert!(error.contains("/proc/1/stat has an unexpected format"), "{error}");
        }
    }

    #[test]
    fn threads_are_found_by_their_names() {
        let named = std::thread::Builder::new().name("a) odd (name".to_owned());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = named.spawn(move || ended.recv()).unwrap();
        let found = || Task::threads(std::process::id()).unwrap();
        // The thread sets its name after it has started.
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
