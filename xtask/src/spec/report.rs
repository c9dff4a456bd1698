//! Parser for TLC output.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// All states were explored and every invariant held.
    NoError,
    Violated(String),
    /// Killed at the time limit.
    TimedOut,
    /// Other error: a module that does not parse, an expression without a value, no memory.
    Failed(String),
}

pub(super) fn found(printed: &str) -> Found {
    let violated = printed.lines().find_map(|line| {
        line.strip_prefix("Error: Invariant ")?.split(" is violated").next().map(str::to_owned)
    });
    if let Some(invariant) = violated {
        return Found::Violated(invariant);
    }
    if printed.contains("Model checking completed. No error has been found.") {
        return Found::NoError;
    }
    let error = printed.lines().find(|line| line.starts_with("Error:") || line.starts_with("***"));
    Found::Failed(error.unwrap_or("it ended without a verdict").to_owned())
}

pub(super) fn distinct_states(printed: &str) -> Option<u64> {
    let before = printed.lines().rev().find_map(|line| {
        let (before, _) = line.split_once(" distinct states found")?;
        before.split_whitespace().next_back()
    })?;
    before.replace(',', "").parse().ok()
}

pub(super) fn tail(printed: &str, lines_max: usize) -> String {
    let lines: Vec<&str> = printed.lines().collect();
    lines[lines.len().saturating_sub(lines_max)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDS: &str = "Progress(18) at 2026-01-01 00:00:00: 221,722 states generated \
        (220,342 s/min), 103,877 distinct states found (102,795 ds/min), 37,318 states left on \
        queue.\nModel checking completed. No error has been found.\n\
        241209 states generated, 132124 distinct states found, 0 states left on queue.\n\
        The depth of the complete state graph search is 30.\n";
    const VIOLATED: &str = "Error: Invariant LogWhole is violated.\n\
        Error: The behavior up to this point is:\nState 1: <Initial predicate>\n\
        147 states generated, 121 distinct states found, 68 states left on queue.\n";

    #[test]
    fn a_run_that_holds_is_read() {
        assert_eq!(found(HOLDS), Found::NoError);
        assert_eq!(distinct_states(HOLDS), Some(132_124));
    }

    #[test]
    fn a_violated_invariant_is_named() {
        assert_eq!(found(VIOLATED), Found::Violated("LogWhole".to_owned()));
        assert_eq!(distinct_states(VIOLATED), Some(121));
        let initial = "Error: Invariant LogWhole is violated by the initial state:\n";
        assert_eq!(found(initial), Found::Violated("LogWhole".to_owned()));
    }

    #[test]
    fn a_run_cut_short_still_reports_its_progress() {
        let cut = HOLDS.lines().next().unwrap();
        assert_eq!(distinct_states(cut), Some(103_877));
        assert_eq!(found(cut), Found::Failed("it ended without a verdict".to_owned()));
    }

    #[test]
    fn a_module_that_does_not_parse_has_failed() {
        let printed = "Semantic errors:\n\n*** Errors: 1\n\nline 74, col 1\n";
        assert_eq!(found(printed), Found::Failed("*** Errors: 1".to_owned()));
        assert_eq!(distinct_states(printed), None);
        assert_eq!(tail(printed, 1), "line 74, col 1");
    }
}
