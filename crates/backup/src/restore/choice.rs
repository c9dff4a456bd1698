//! Choice of the moment that is restored.

use crate::{BaseSummary, Restorable};
use stele_types::{Error, MomentId, Result};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Moment that the caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentChoice {
    /// The last one that can be restored.
    Newest,
    /// The one with this number.
    Number(MomentId),
    /// The last one of which all clocks of nodes were at or before this time, in Unix milliseconds.
    At(u64),
}

/// Moment to restore, and its base.
#[derive(Clone, Debug)]
pub struct ChosenMoment {
    /// The moment.
    pub moment: Restorable,
    /// Base from which it is restored.
    pub base: BaseSummary,
    /// The moment after it in the repository.
    pub next: Option<Restorable>,
}

/// Returns the earliest and the latest clock of a moment's nodes, in Unix milliseconds; `None` without clocks.
pub fn clocks_ms(moment: &Restorable) -> Option<(u64, u64)> {
    let clocks = || moment.clocks_unix_ms.iter().map(|(_, clock_ms)| *clock_ms);
    Some((clocks().min()?, clocks().max()?))
}

fn latest_clock_ms(moment: &Restorable) -> Option<u64> {
    clocks_ms(moment).map(|(_, latest)| latest)
}

/// Chooses among the moments of a repository. Fails with `Refused` if the wanted one is absent or cannot be
/// restored: another one is never taken in its place.
pub fn choose(moments: &[Restorable], wanted: MomentChoice) -> Result<ChosenMoment> {
    let number = match wanted {
        MomentChoice::Newest => {
            let restorable = moments.iter().filter(|moment| moment.base.is_some());
            let newest = restorable.map(|moment| moment.number).max();
            newest.ok_or_else(|| nothing(moments))?
        }
        MomentChoice::Number(number) => number,
        MomentChoice::At(unix_ms) => {
            // Invariant: no write of the moment was acknowledged at a node of which the clock was after the
            // wanted time.
            // Tests: `a_time_is_the_last_moment_of_which_no_clock_was_later`.
            let is_before = |moment: &&Restorable| {
                // bug backup.time_by_the_earliest_clock: `latest_clock_ms(moment)` is `clocks_ms(moment).map(|(earliest, _)| earliest)`
                latest_clock_ms(moment).is_some_and(|clock| clock <= unix_ms)
            };
            let found = moments.iter().filter(is_before).map(|moment| moment.number).max();
            found.ok_or_else(|| nothing_before(moments, unix_ms))?
        }
    };
    let next = moments.iter().filter(|moment| moment.number > number).min_by_key(|it| it.number);
    let found = moments.iter().find(|moment| moment.number == number);
    match found.and_then(|moment| Some((moment, moment.base?))) {
        Some((moment, base)) => {
            Ok(ChosenMoment { moment: moment.clone(), base, next: next.cloned() })
        }
        None => Err(not_restorable(moments, number)),
    }
}

fn nothing(moments: &[Restorable]) -> Error {
    Error::Refused(match moments.len() {
        0 => "the repository has no moment yet: let `stele backup` run until it prints one"
            .to_owned(),
        count => format!(
            "none of the {count} moments can be restored, because no base is complete before them: let \
             `stele backup` run until it prints that the base is complete, and a moment after it"
        ),
    })
}

fn nothing_before(moments: &[Restorable], unix_ms: u64) -> Error {
    let first = moments.iter().filter_map(|it| Some((latest_clock_ms(it)?, it.number))).min();
    let first = first.map_or_else(
        || "the repository has no moment with a time".to_owned(),
        |(clock, number)| format!("the first is moment {number} at {}", time_text(clock)),
    );
    Error::Refused(format!("no moment is at or before {}: {first}", time_text(unix_ms)))
}

fn not_restorable(moments: &[Restorable], number: MomentId) -> Error {
    let restorable = || moments.iter().filter(|moment| moment.base.is_some());
    let numbers = || restorable().map(|moment| moment.number);
    let near =
        [numbers().filter(|it| *it < number).max(), numbers().filter(|it| *it > number).min()];
    let near: Vec<String> = near.into_iter().flatten().map(|near| near.to_string()).collect();
    let problem = match moments.iter().any(|moment| moment.number == number) {
        true => "cannot be restored, because no base of its run is complete before it",
        false => "is not in the repository",
    };
    let remedy = match near.is_empty() {
        true => {
            "no moment can be restored; let `stele backup` run until a base is complete".to_owned()
        }
        false => format!("name another one with --moment, such as {}", near.join(" or ")),
    };
    Error::Refused(format!("moment {number} {problem}; {remedy}"))
}

/// Returns a time in Unix milliseconds as RFC 3339 in UTC.
pub fn time_text(unix_ms: u64) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ms) * 1_000_000);
    let text = time.ok().and_then(|time| time.format(&Rfc3339).ok());
    text.unwrap_or_else(|| format!("{unix_ms} ms"))
}

/// Parses a time as RFC 3339 or Unix seconds; returns Unix milliseconds.
pub fn parse_time(text: &str) -> Result<u64> {
    let invalid = || {
        Error::invalid(format!(
            "`{text}` is not a time: write Unix seconds, or RFC 3339 such as 2026-07-01T12:00:00Z"
        ))
    };
    if let Ok(unix_s) = text.parse::<u64>() {
        return unix_s.checked_mul(1000).ok_or_else(invalid);
    }
    let time = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| invalid())?;
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BaseName;
    use crate::format::{BaseSeq, LogSeq, RunId};

    /// Moments with numbers and clocks; those from a number on can be restored.
    fn moments(of: &[(u64, [u64; 2])], from: u64) -> Vec<Restorable> {
        let name = BaseName { run: RunId(1), seq: BaseSeq(4) };
        let (log_from, log_complete) = (LogSeq(0), LogSeq(from));
        let base = BaseSummary { name, log_from, log_complete, pairs: 0, bytes: 0 };
        let moment = |(number, clocks): &(u64, [u64; 2])| Restorable {
            number: MomentId(*number),
            run: RunId(1),
            last_log: LogSeq(*number),
            clocks_unix_ms: vec![(1, clocks[0]), (2, clocks[1])],
            program: "0.2.0".to_owned(),
            level: 2,
            base: (*number >= from).then_some(base),
            log_bytes: 0,
        };
        of.iter().map(moment).collect()
    }

    #[test]
    fn a_time_is_the_last_moment_of_which_no_clock_was_later() {
        // The clock of the second node is late, and once goes back.
        let moments = moments(&[(3, [1000, 900]), (5, [2000, 2400]), (8, [2600, 1800])], 0);
        let at = |unix_ms| choose(&moments, MomentChoice::At(unix_ms));
        for (unix_ms, expected) in
            [(1000, 3), (2399, 3), (2400, 5), (2599, 5), (2600, 8), (u64::MAX, 8)]
        {
            assert_eq!(at(unix_ms).unwrap().moment.number.0, expected, "{unix_ms}");
        }
        let chosen = at(2400).unwrap();
        assert_eq!(clocks_ms(&chosen.moment), Some((2000, 2400)));
        assert_eq!(chosen.next.unwrap().number.0, 8);
        assert!(at(u64::MAX).unwrap().next.is_none());
        let early = at(999).unwrap_err().to_string();
        assert!(early.contains("the first is moment 3 at 1970-01-01T00:00:01Z"), "{early}");
    }

    #[test]
    fn a_moment_that_cannot_be_restored_is_refused_with_those_that_can() {
        let of = [(3, [1, 1]), (5, [2, 2]), (8, [3, 3]), (9, [4, 4])];
        let from_eight = moments(&of, 8);
        let newest = choose(&from_eight, MomentChoice::Newest).unwrap();
        assert_eq!(newest.moment.number.0, 9);
        for (wanted, text) in [
            (MomentChoice::Number(MomentId(5)), "moment 5 cannot be restored"),
            (MomentChoice::At(2), "moment 5 cannot be restored"),
            (MomentChoice::Number(MomentId(7)), "moment 7 is not in the repository"),
        ] {
            let refused = choose(&from_eight, wanted).unwrap_err().to_string();
            assert!(refused.contains(text) && refused.contains("such as 8"), "{refused}");
        }
        let refused = choose(&moments(&of, 10), MomentChoice::Newest).unwrap_err().to_string();
        assert!(refused.contains("none of the 4 moments"), "{refused}");
        let refused = choose(&[], MomentChoice::Newest).unwrap_err().to_string();
        assert!(refused.contains("no moment yet"), "{refused}");
    }

    #[test]
    fn times_are_unix_seconds_or_rfc_3339() {
        assert_eq!(parse_time("1000").unwrap(), 1_000_000);
        assert_eq!(parse_time("1970-01-01T00:00:01.5Z").unwrap(), 1500);
        assert_eq!(parse_time("1970-01-01T02:00:00+02:00").unwrap(), 0);
        for bad in ["", "-1", "1969-12-31T23:59:59Z", "2026-07-01", "99999999999999999999"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_time(&time_text(1_234_567_890_123)).unwrap(), 1_234_567_890_123);
    }
}
