//! Search for a smaller plan with the same violation: fewer kinds of faults, fewer operations, less
//! time.

use crate::plan::Plan;
use crate::run::{Wanted, run};

const TRIES_MAX: usize = 60;

/// Returns a smaller plan that ends in a violation of the same kind, and the text of that
/// violation.
pub fn minimise(plan: &Plan, violation: &str) -> (Plan, String) {
    let kind = kind_of(violation);
    let (mut best, mut message) = (plan.clone(), violation.to_owned());
    let mut left = TRIES_MAX;
    let mut attempt = |candidate: Plan, best: &mut Plan, message: &mut String| {
        if left == 0 {
            return false;
        }
        left -= 1;
        let found = run(&candidate, Wanted::default()).violation;
        let Some(found) = found.filter(|found| kind_of(found) == kind) else { return false };
        (*best, *message) = (candidate, found);
        true
    };
    for fault in plan.faults.iter() {
        let mut candidate = best.clone();
        candidate.faults.remove(fault);
        attempt(candidate, &mut best, &mut message);
    }
    while best.nanos > 200_000_000 {
        let candidate = Plan { nanos: best.nanos * 2 / 3, ..best.clone() };
        if !attempt(candidate, &mut best, &mut message) {
            break;
        }
    }
    while best.ops_max > 10 {
        let candidate = Plan { ops_max: best.ops_max * 2 / 3, ..best.clone() };
        if !attempt(candidate, &mut best, &mut message) {
            break;
        }
    }
    (best, message)
}

/// Returns the first part of a violation's text, without digits.
fn kind_of(violation: &str) -> String {
    let first = violation.split(':').next().unwrap_or_default();
    first.chars().filter(|c| !c.is_ascii_digit()).collect()
}
