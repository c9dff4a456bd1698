//! Limit of the process's file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit above which raising it gains nothing.
const WANTED: u64 = 1 << 20;

/// Raises the limit as far as the system allows. Returns the limit in force.
pub(crate) fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let current = current.unwrap_or(u64::MAX);
    let wanted = maximum.unwrap_or(u64::MAX).min(WANTED);
    if wanted <= current {
        return current;
    }
    let raised = Rlimit { current: Some(wanted), maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => wanted,
        // The old limit stays in force.
        Err(_) => current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_what_the_system_allows_and_never_lowered() {
        let before = getrlimit(Resource::Nofile);
        let limit = raise();
        let after = getrlimit(Resource::Nofile);
        assert_eq!(after.current.unwrap_or(u64::MAX), limit);
        assert!(limit >= before.current.unwrap_or(u64::MAX));
        assert!(limit >= before.maximum.unwrap_or(u64::MAX).min(WANTED));
        assert_eq!((after.maximum, raise()), (before.maximum, limit));
    }
}
