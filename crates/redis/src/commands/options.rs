//! Options of SET, GETEX and their kin.

use super::Call;
use crate::number::parse_i64;
use crate::state::Stop;
use bytes::Bytes;

/// Form of an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Seconds from now.
    Ex,
    /// Milliseconds from now.
    Px,
    /// Unix seconds.
    ExAt,
    /// Unix milliseconds.
    PxAt,
}

/// What becomes of the expiry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum NewExpiry {
    /// No option: SET removes it, GETEX keeps it.
    #[default]
    Default,
    /// KEEPTTL.
    Keep,
    /// PERSIST.
    Remove,
    /// EX, PX, EXAT, PXAT with the argument.
    At(Unit, Bytes),
}

/// Condition of SET.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Condition {
    #[default]
    None,
    /// NX.
    IfAbsent,
    /// XX.
    IfPresent,
    /// IFEQ with the value that the name must have.
    IfEqual(Bytes),
}

/// Options of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub condition: Condition,
    /// Whether SET answers the value before it.
    pub gets: bool,
    pub expiry: NewExpiry,
}

impl Options {
    pub(super) fn of_set(arguments: &[Bytes]) -> Result<Self, Stop> {
        Self::parse(arguments, true)
    }

    pub(super) fn of_getex(arguments: &[Bytes]) -> Result<Self, Stop> {
        Self::parse(arguments, false)
    }

    fn parse(arguments: &[Bytes], is_set: bool) -> Result<Self, Stop> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            let word = word.to_ascii_uppercase();
            match &word[..] {
                b"NX" if is_set => options.require(Condition::IfAbsent)?,
                b"XX" if is_set => options.require(Condition::IfPresent)?,
                b"IFEQ" if is_set => {
                    options.require(Condition::IfEqual(next(&mut rest)?))?;
                }
                b"GET" if is_set => options.gets = true,
                b"KEEPTTL" if is_set => options.expire(NewExpiry::Keep)?,
                b"PERSIST" if !is_set => options.expire(NewExpiry::Remove)?,
                b"EX" => options.expire(NewExpiry::At(Unit::Ex, next(&mut rest)?))?,
                b"PX" => options.expire(NewExpiry::At(Unit::Px, next(&mut rest)?))?,
                b"EXAT" => options.expire(NewExpiry::At(Unit::ExAt, next(&mut rest)?))?,
                b"PXAT" => options.expire(NewExpiry::At(Unit::PxAt, next(&mut rest)?))?,
                _ => return Err(Stop::SYNTAX),
            }
        }
        Ok(options)
    }

    /// Sets the condition; fails if there is one of another form.
    fn require(&mut self, condition: Condition) -> Result<(), Stop> {
        let form = std::mem::discriminant;
        if self.condition != Condition::None && form(&self.condition) != form(&condition) {
            return Err(Stop::SYNTAX);
        }
        self.condition = condition;
        Ok(())
    }

    /// Sets what becomes of the expiry; fails if another form was given. The last of one form counts.
    fn expire(&mut self, expiry: NewExpiry) -> Result<(), Stop> {
        let is_same_form = match (&self.expiry, &expiry) {
            (NewExpiry::Default, _) => true,
            (NewExpiry::At(before, _), NewExpiry::At(unit, _)) => before == unit,
            (before, new) => before == new,
        };
        if !is_same_form {
            return Err(Stop::SYNTAX);
        }
        self.expiry = expiry;
        Ok(())
    }
}

fn next<'b>(rest: &mut impl Iterator<Item = &'b Bytes>) -> Result<Bytes, Stop> {
    rest.next().cloned().ok_or(Stop::SYNTAX)
}

/// Returns the expiry in Unix milliseconds that an argument of SET or GETEX means.
pub(super) fn expires_at_ms(call: &Call<'_, '_>, unit: Unit, argument: &[u8]) -> Result<u64, Stop> {
    let invalid = || Stop::error(format!("ERR invalid expire time in '{}' command", call.name()));
    let time = parse_i64(argument).ok_or(Stop::NOT_AN_INTEGER)?;
    if time <= 0 {
        return Err(invalid());
    }
    let time_ms = match unit {
        Unit::Ex | Unit::ExAt => time.checked_mul(1000).ok_or_else(invalid)?,
        Unit::Px | Unit::PxAt => time,
    };
    let now_ms = match unit {
        Unit::Ex | Unit::Px => i64::try_from(call.state.now_ms()).unwrap_or(i64::MAX),
        Unit::ExAt | Unit::PxAt => 0,
    };
    let sum = time_ms.checked_add(now_ms).ok_or_else(invalid)?;
    u64::try_from(sum).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &'static str, is_set: bool) -> Option<Options> {
        let words: Vec<Bytes> = text.split_whitespace().map(Bytes::from).collect();
        Options::parse(&words, is_set).ok()
    }

    #[test]
    fn options_of_one_form_may_repeat_and_others_exclude_each_other() {
        let at = |unit, time| NewExpiry::At(unit, Bytes::from_static(time));
        let set = |condition, gets, expiry| Some(Options { condition, gets, expiry });
        let rows = [
            ("", set(Condition::None, false, NewExpiry::Default)),
            ("nx GET get", set(Condition::IfAbsent, true, NewExpiry::Default)),
            ("XX xx KeepTtl", set(Condition::IfPresent, false, NewExpiry::Keep)),
            ("IFEQ v PX 5", set(Condition::IfEqual("v".into()), false, at(Unit::Px, b"5"))),
            ("EX 5 EX 6", set(Condition::None, false, at(Unit::Ex, b"6"))),
            ("PXAT NX", set(Condition::None, false, at(Unit::PxAt, b"NX"))),
            ("NX XX", None),
            ("NX IFEQ v", None),
            ("IFEQ", None),
            ("EX 5 PX 5", None),
            ("EX 5 KEEPTTL", None),
            ("KEEPTTL EXAT 5", None),
            ("EX", None),
            ("PERSIST", None),
            ("nothing", None),
        ];
        for (text, expected) in rows {
            assert_eq!(parsed(text, true), expected, "{text}");
        }
        assert_eq!(parsed("PERSIST", false).unwrap().expiry, NewExpiry::Remove);
        assert_eq!(parsed("EXAT 5", false).unwrap().expiry, at(Unit::ExAt, b"5"));
        for text in ["NX", "GET", "KEEPTTL", "PERSIST EX 5", "EX 5 PERSIST", "IFEQ v"] {
            assert_eq!(parsed(text, false), None, "{text}");
        }
    }
}
