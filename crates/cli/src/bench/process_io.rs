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

/// Seconds of processor time that a process has used.
pub fn processor_seconds(pid: u32) -> Result<f64> {
    let text = read(pid, "stat")?;
    // The name, in parentheses, may contain anything; fields 14 and 15 are counted from the front.
    let fields = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let mut ticks = fields.split_ascii_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let (Some(Ok(user)), Some(Ok(system))) = (ticks.next(), ticks.next()) else {
        return Err(Error::invalid(format!("/proc/{pid}/stat reads otherwise than expected")));
    };
    Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path).map_err(|error| Error::io("read", path, error))
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
    fn processor_time_of_this_process_grows() {
        let pid = std::process::id();
        let before = processor_seconds(pid).unwrap();
        let began = std::time::Instant::now();
        while processor_seconds(pid).unwrap() - before < 0.05 {
            assert!(began.elapsed().as_secs() < 60);
        }
    }
}
