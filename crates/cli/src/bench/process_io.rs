//! What the kernel counted for this process, from `/proc/self/io`.

/// Bytes this process caused to be fetched from and sent to devices. Zero where the system does not
/// tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessIo {
    pub read_bytes: u64,
    pub write_bytes: u64,
}

impl ProcessIo {
    pub fn now() -> Self {
        std::fs::read_to_string("/proc/self/io").map(|text| Self::parse(&text)).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_bytes_are_told_from_those_of_calls() {
        let text = "rchar: 9\nwchar: 8\nsyscr: 7\nsyscw: 6\nread_bytes: 4096\nwrite_bytes: 8192\n\
                    cancelled_write_bytes: 5\n";
        assert_eq!(ProcessIo::parse(text), ProcessIo { read_bytes: 4096, write_bytes: 8192 });
        assert_eq!(ProcessIo::parse(""), ProcessIo::default());
    }
}
