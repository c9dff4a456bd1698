//! Commands that read and change the expiry of a name.

use super::Call;
use crate::reply::Reply;
use crate::state::{Answer, Stop};

const MS_PER_S: i64 = 1000;

pub(crate) fn expire(call: &mut Call<'_, '_>) -> Answer {
    set_expiry(call, MS_PER_S, true)
}

pub(crate) fn pexpire(call: &mut Call<'_, '_>) -> Answer {
    set_expiry(call, 1, true)
}

pub(crate) fn expireat(call: &mut Call<'_, '_>) -> Answer {
    set_expiry(call, MS_PER_S, false)
}

pub(crate) fn pexpireat(call: &mut Call<'_, '_>) -> Answer {
    set_expiry(call, 1, false)
}

/// Conditions on the expiry before it; `None` is later than all times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Conditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_earlier: bool,
}

impl Conditions {
    fn parse(call: &Call<'_, '_>) -> Result<Self, Stop> {
        let mut conditions = Self::default();
        for word in call.arguments_from(3) {
            match &word.to_ascii_uppercase()[..] {
                b"NX" => conditions.if_none = true,
                b"XX" => conditions.if_some = true,
                b"GT" => conditions.if_later = true,
                b"LT" => conditions.if_earlier = true,
                _ => {
                    // Redis prints up to the first zero byte.
                    let end = word.iter().position(|&byte| byte == 0).unwrap_or(word.len());
                    let word = String::from_utf8_lossy(word.get(..end).unwrap_or_default());
                    let word = word.trim_end_matches(['\r', '\n']);
                    return Err(Stop::error(format!("ERR Unsupported option {word}")));
                }
            }
        }
        let Self { if_none, if_some, if_later, if_earlier } = conditions;
        if if_none && (if_some || if_later || if_earlier) {
            return Err(Stop::error(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if if_later && if_earlier {
            return Err(Stop::error("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    fn hold(self, before_ms: Option<i64>, at_ms: i64) -> bool {
        let Self { if_none, if_some, if_later, if_earlier } = self;
        let is_later = before_ms.is_some_and(|before_ms| at_ms > before_ms);
        let is_earlier = before_ms.is_none_or(|before_ms| at_ms < before_ms);
        (!if_none || before_ms.is_none())
            && (!if_some || before_ms.is_some())
            && (!if_later || is_later)
            && (!if_earlier || is_earlier)
    }
}

/// Sets the expiry, in units of some milliseconds, from now or since 1970. A time that has passed deletes
/// the name.
fn set_expiry(call: &mut Call<'_, '_>, unit_ms: i64, from_now: bool) -> Answer {
    let conditions = Conditions::parse(call)?;
    let time = call.integer(2)?;
    let now_ms = i64::try_from(call.state.now_ms()).unwrap_or(i64::MAX);
    let at_ms = time.checked_mul(unit_ms);
    let at_ms = at_ms.and_then(|ms| ms.checked_add(if from_now { now_ms } else { 0 }));
    let at_ms = at_ms.ok_or_else(|| {
        Stop::error(format!("ERR invalid expire time in '{}' command", call.name()))
    })?;
    let key = call.key()?;
    let Some(mut entry) = call.state.entry(&key)? else { return Ok(Reply::Integer(0)) };
    let before_ms = entry.header.expires_at_ms;
    let before_ms = (before_ms != 0).then(|| i64::try_from(before_ms).unwrap_or(i64::MAX));
    if !conditions.hold(before_ms, at_ms) {
        return Ok(Reply::Integer(0));
    }
    if at_ms <= now_ms {
        call.state.delete(&key);
    } else {
        entry.header.expires_at_ms = at_ms.unsigned_abs();
        call.state.put(&key, entry);
    }
    Ok(Reply::Integer(1))
}

pub(crate) fn persist(call: &mut Call<'_, '_>) -> Answer {
    let key = call.key()?;
    let entry = call.state.entry(&key)?;
    let Some(mut entry) = entry.filter(|entry| entry.header.expires_at_ms != 0) else {
        return Ok(Reply::Integer(0));
    };
    entry.header.expires_at_ms = 0;
    call.state.put(&key, entry);
    Ok(Reply::Integer(1))
}

pub(crate) fn ttl(call: &mut Call<'_, '_>) -> Answer {
    let now_ms = call.state.now_ms();
    read_expiry(call, |ms| rounded_s(ms.saturating_sub(now_ms)))
}

pub(crate) fn pttl(call: &mut Call<'_, '_>) -> Answer {
    let now_ms = call.state.now_ms();
    read_expiry(call, |ms| ms.saturating_sub(now_ms))
}

pub(crate) fn expiretime(call: &mut Call<'_, '_>) -> Answer {
    read_expiry(call, rounded_s)
}

pub(crate) fn pexpiretime(call: &mut Call<'_, '_>) -> Answer {
    read_expiry(call, |ms| ms)
}

/// Returns milliseconds in whole seconds, the nearest.
fn rounded_s(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

/// Answers -2 for an absent name, -1 for one without expiry.
fn read_expiry(call: &mut Call<'_, '_>, form: impl Fn(u64) -> u64) -> Answer {
    const ABSENT: Reply = Reply::Integer(-2);
    const NO_EXPIRY: Reply = Reply::Integer(-1);
    let key = call.key()?;
    Ok(match call.state.entry(&key)?.map(|entry| entry.header.expires_at_ms) {
        None => ABSENT,
        Some(0) => NO_EXPIRY,
        Some(ms) => Reply::count(form(ms)),
    })
}
