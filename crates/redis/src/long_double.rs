//! Floating-point numbers of 80 bits, in which Redis computes INCRBYFLOAT and HINCRBYFLOAT on x86-64: 64
//! bits of mantissa, and exponents to ±16,383. Redis prints them with 17 decimals. Rust has no such type,
//! so that these are integers; each result is the exact one, rounded to nearest, ties to even.

use std::cmp::Ordering;

/// Exponent of the smallest number above 0.
const EXPONENT_MIN: i32 = -16_445;
/// Exponent of numbers with all 64 bits, above which a number is infinite.
const EXPONENT_MAX: i32 = 16_320;
const MANTISSA_BITS: i32 = 64;
/// Bits that the first summand gets below its last one, to round the sum.
const GUARD_BITS: i32 = 63;
/// Bits of a quotient: those of a mantissa and some to round.
const QUOTIENT_BITS: i32 = 67;
const DECIMALS: usize = 17;
const TEN_TO_DECIMALS: u128 = 10u128.pow(DECIMALS as u32);
/// Length from which Redis refuses a text.
const TEXT_BYTES_LIMIT: usize = 5 * 1024;
/// Decimal exponent beyond which every number is infinite or 0.
const DECIMAL_EXPONENT_LIMIT: i64 = 5_000;

/// A number; never NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongDouble {
    /// `mantissa` × 2^`exponent`. The mantissa has its highest bit set, unless it is 0 or the exponent is
    /// the smallest.
    Finite {
        is_negative: bool,
        mantissa: u64,
        exponent: i32,
    },
    Infinite {
        is_negative: bool,
    },
}

impl LongDouble {
    pub(crate) const ZERO: Self = Self::Finite { is_negative: false, mantissa: 0, exponent: 0 };

    /// Parses a text as `strtold` does, without space before it. `None` for NaN, and for finite numbers
    /// that become infinite or 0.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= TEXT_BYTES_LIMIT {
            return None;
        }
        let (is_negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(Self::Infinite { is_negative });
        }
        let number = match text {
            [b'0', b'x' | b'X', hex @ ..] => parse_hex(is_negative, hex),
            decimal => parse_decimal(is_negative, decimal),
        }?;
        number.is_finite().then_some(number)
    }

    pub(crate) fn is_finite(self) -> bool {
        matches!(self, Self::Finite { .. })
    }

    /// Returns the sum; `None` if it is infinite or NaN.
    pub(crate) fn add(self, other: Self) -> Option<Self> {
        let (
            Self::Finite { mantissa: a, exponent, .. },
            Self::Finite { mantissa: b, exponent: other_exponent, .. },
        ) = (self, other)
        else {
            return None;
        };
        match (a, b) {
            (0, 0) => Some(Self::ZERO),
            (0, _) => Some(other),
            (_, 0) => Some(self),
            _ if other_exponent <= exponent => self.add_smaller(other),
            _ => other.add_smaller(self),
        }
    }

    /// Adds a number with an exponent that is not larger. None of both is 0.
    fn add_smaller(self, other: Self) -> Option<Self> {
        let (
            Self::Finite { is_negative, mantissa: a, exponent },
            Self::Finite { is_negative: other_negative, mantissa: b, exponent: other_exponent },
        ) = (self, other)
        else {
            return None;
        };
        let a = u128::from(a) << GUARD_BITS;
        let b = u128::from(b) << GUARD_BITS;
        let shift = u32::try_from(exponent - other_exponent).ok()?;
        let shifted = b.checked_shr(shift).unwrap_or(0);
        let has_rest = shifted.checked_shl(shift) != Some(b);
        let exponent = exponent - GUARD_BITS;
        let sum = match (is_negative == other_negative, a.cmp(&shifted)) {
            (true, _) => Self::rounded(is_negative, a + shifted, exponent, has_rest),
            (false, Ordering::Equal) => return Some(Self::ZERO),
            (false, Ordering::Less) => {
                Self::rounded(other_negative, shifted - a, exponent, has_rest)
            }
            (false, Ordering::Greater) => {
                let difference = a - shifted - u128::from(has_rest);
                Self::rounded(is_negative, difference, exponent, has_rest)
            }
        };
        sum.is_finite().then_some(sum)
    }

    /// Rounds `number` × 2^`exponent`, with something below its last bit if `has_rest`: then `number` has
    /// more than 64 bits.
    fn rounded(is_negative: bool, number: u128, exponent: i32, has_rest: bool) -> Self {
        let bits = 128 - number.leading_zeros() as i32;
        let shift = (bits - MANTISSA_BITS).max(EXPONENT_MIN - exponent);
        let mut exponent = exponent.saturating_add(shift);
        let mut mantissa = match u32::try_from(shift) {
            Err(_) => number << shift.unsigned_abs(),
            Ok(shift) => {
                let kept = number.checked_shr(shift).unwrap_or(0);
                kept + u128::from(rounds_up(number, shift, has_rest))
            }
        };
        if mantissa >> MANTISSA_BITS != 0 {
            mantissa >>= 1;
            exponent += 1;
        }
        match u64::try_from(mantissa) {
            Ok(0) => Self::Finite { is_negative, mantissa: 0, exponent: 0 },
            Ok(mantissa) if exponent <= EXPONENT_MAX => {
                Self::Finite { is_negative, mantissa, exponent }
            }
            _ => Self::Infinite { is_negative },
        }
    }

    /// Returns the number with at most 17 decimals, without zeros at the end.
    pub(crate) fn to_text(self) -> String {
        let Self::Finite { is_negative, mantissa, exponent } = self else {
            return String::from("inf");
        };
        let text = match u32::try_from(exponent) {
            Ok(exponent) => Big::from_u128(u128::from(mantissa)).shifted(exponent).to_decimal(),
            Err(_) => fraction_text(mantissa, exponent.unsigned_abs()),
        };
        if is_negative && text != "0" { format!("-{text}") } else { text }
    }
}

/// Whether `number` without its last `shift` bits must be increased.
fn rounds_up(number: u128, shift: u32, has_rest: bool) -> bool {
    if shift == 0 || shift > 128 {
        return false;
    }
    let half = 1u128 << (shift - 1);
    let below = number & (half | (half - 1));
    let is_odd = number.checked_shr(shift).unwrap_or(0) & 1 == 1;
    match below.cmp(&half) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => has_rest || is_odd,
    }
}

/// Returns `mantissa` / 2^`shift` in decimals.
fn fraction_text(mantissa: u64, shift: u32) -> String {
    let scaled = u128::from(mantissa) * TEN_TO_DECIMALS;
    let kept = scaled.checked_shr(shift).unwrap_or(0);
    let scaled = kept + u128::from(rounds_up(scaled, shift, false));
    let (whole, decimals) = (scaled / TEN_TO_DECIMALS, scaled % TEN_TO_DECIMALS);
    let text = format!("{whole}.{decimals:0DECIMALS$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Parts of a text: digits, number of those after the point, and exponent.
struct Digits {
    digits: Vec<u8>,
    decimals: i64,
    exponent: i64,
}

/// Splits digits with at most one point, and an exponent after `mark`. `None` for any other text.
fn split_digits(text: &[u8], base: u32, mark: u8) -> Option<Digits> {
    let mut digits = Vec::with_capacity(text.len());
    let mut decimals = None;
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        match (char::from(*byte).to_digit(base), byte) {
            (Some(digit), _) => {
                digits.push(digit as u8);
                decimals = decimals.map(|decimals: i64| decimals + 1);
            }
            (None, b'.') if decimals.is_none() => decimals = Some(0),
            _ => break,
        }
        rest = tail;
    }
    let decimals = decimals.unwrap_or(0);
    let exponent = match rest {
        [] => 0,
        [byte, exponent @ ..] if byte.eq_ignore_ascii_case(&mark) => parse_exponent(exponent)?,
        _ => return None,
    };
    (!digits.is_empty()).then_some(Digits { digits, decimals, exponent })
}

/// Parses an exponent; one beyond all that matter becomes another such one.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    const SATURATED: i64 = 1 << 40;
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let mut exponent = 0i64;
    for &byte in digits {
        exponent = (exponent * 10 + i64::from(char::from(byte).to_digit(10)?)).min(SATURATED);
    }
    let exponent = if is_negative { -exponent } else { exponent };
    (!digits.is_empty()).then_some(exponent)
}

fn parse_hex(is_negative: bool, text: &[u8]) -> Option<LongDouble> {
    const BITS: i64 = 4;
    let Digits { digits, decimals, exponent } = split_digits(text, 16, b'p')?;
    let mut exponent = exponent - decimals * BITS;
    let (mut number, mut has_rest) = (0u128, false);
    for digit in digits {
        if number >> 100 == 0 {
            number = number << BITS | u128::from(digit);
        } else {
            has_rest |= digit != 0;
            exponent += BITS;
        }
    }
    nonzero(is_negative, number, exponent, has_rest)
}

/// Rounds a number that was parsed. `None` if it becomes infinite, or 0 though it is not.
fn nonzero(is_negative: bool, number: u128, exponent: i64, has_rest: bool) -> Option<LongDouble> {
    if number == 0 {
        return Some(LongDouble::Finite { is_negative, mantissa: 0, exponent: 0 });
    }
    let exponent = i32::try_from(exponent.clamp(-100_000, 100_000)).ok()?;
    match LongDouble::rounded(is_negative, number, exponent, has_rest) {
        LongDouble::Finite { mantissa: 0, .. } | LongDouble::Infinite { .. } => None,
        number => Some(number),
    }
}

fn parse_decimal(is_negative: bool, text: &[u8]) -> Option<LongDouble> {
    let Digits { digits, decimals, exponent } = split_digits(text, 10, b'e')?;
    let exponent = exponent - decimals;
    let zeros = digits.iter().take_while(|&&digit| digit == 0).count();
    let magnitude = (digits.len() - zeros) as i64 + exponent;
    if zeros == digits.len() {
        return nonzero(is_negative, 0, 0, false);
    }
    if magnitude.abs() > DECIMAL_EXPONENT_LIMIT {
        return None;
    }
    let mut number = Big::default();
    for digit in digits {
        number.multiply_add(10, u32::from(digit));
    }
    let mut divisor = Big::from_u128(1);
    let scaled = if exponent < 0 { &mut divisor } else { &mut number };
    for _ in 0..exponent.unsigned_abs() {
        scaled.multiply_add(10, 0);
    }
    let shift = divisor.bits() + QUOTIENT_BITS - number.bits();
    match u32::try_from(shift) {
        Ok(shift) => number = number.shifted(shift),
        Err(_) => divisor = divisor.shifted(shift.unsigned_abs()),
    }
    let (quotient, has_rest) = number.divide(&divisor);
    nonzero(is_negative, quotient, i64::from(-shift), has_rest)
}

/// A whole number of any size: digits of 32 bits, the lowest first, without zeros at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Big(Vec<u32>);

impl Big {
    fn from_u128(number: u128) -> Self {
        let mut big = Self((0..4).map(|i| (number >> (32 * i)) as u32).collect());
        big.trim();
        big
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn bits(&self) -> i32 {
        let top = self.0.last().map_or(0, |digit| 32 - digit.leading_zeros() as i32);
        top + 32 * (self.0.len() as i32 - 1).max(0)
    }

    fn multiply_add(&mut self, factor: u32, more: u32) {
        let mut carry = u64::from(more);
        for digit in &mut self.0 {
            carry += u64::from(*digit) * u64::from(factor);
            *digit = carry as u32;
            carry >>= 32;
        }
        if carry != 0 {
            self.0.push(carry as u32);
        }
    }

    fn shifted(&self, bits: u32) -> Self {
        let mut digits = vec![0; bits as usize / 32];
        let mut carry = 0u64;
        for &digit in &self.0 {
            carry |= u64::from(digit) << (bits % 32);
            digits.push(carry as u32);
            carry >>= 32;
        }
        digits.push(carry as u32);
        let mut big = Self(digits);
        big.trim();
        big
    }

    fn halve(&mut self) {
        let mut carry = 0;
        for digit in self.0.iter_mut().rev() {
            let low = *digit & 1;
            *digit = *digit >> 1 | carry << 31;
            carry = low;
        }
        self.trim();
    }

    fn subtract(&mut self, other: &Self) {
        let mut borrow = 0i64;
        for (at, digit) in self.0.iter_mut().enumerate() {
            borrow += i64::from(*digit) - i64::from(other.0.get(at).copied().unwrap_or(0));
            *digit = borrow as u32;
            borrow >>= 32;
        }
        self.trim();
    }

    fn order(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Returns the quotient, and whether there is a remainder. The quotient has at most
    /// [`QUOTIENT_BITS`] + 1 bits.
    fn divide(mut self, divisor: &Self) -> (u128, bool) {
        let mut part = divisor.shifted(QUOTIENT_BITS.unsigned_abs());
        let mut quotient = 0u128;
        for _ in 0..=QUOTIENT_BITS {
            quotient <<= 1;
            if self.order(&part) != Ordering::Less {
                self.subtract(&part);
                quotient |= 1;
            }
            part.halve();
        }
        (quotient, !self.0.is_empty())
    }

    fn to_decimal(&self) -> String {
        const PART: u64 = 1_000_000_000;
        let mut digits = self.0.clone();
        let mut parts = Vec::new();
        while !digits.is_empty() {
            let mut rest = 0u64;
            for digit in digits.iter_mut().rev() {
                rest = rest << 32 | u64::from(*digit);
                *digit = (rest / PART) as u32;
                rest %= PART;
            }
            parts.push(rest);
            while digits.last() == Some(&0) {
                digits.pop();
            }
        }
        let mut text = parts.pop().unwrap_or(0).to_string();
        for part in parts.iter().rev() {
            text.push_str(&format!("{part:09}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        let parsed = |text: &str| LongDouble::parse(text.as_bytes());
        parsed(a)?.add(parsed(b)?).map(LongDouble::to_text)
    }

    #[test]
    fn sums_are_those_of_redis() {
        let rows = [
            ("0.1", "0.2", "0.3"),
            ("1e20", "1", "100000000000000000000"),
            ("123456789.123456789", "0.1", "123456789.22345678899728227"),
            ("0.3", "3.0e15", "3000000000000000.300048828125"),
            ("0", "1e-18", "0"),
            ("0", "-1e-18", "0"),
            ("-0", "-0", "0"),
            ("1", "-1", "0"),
            ("+1", "01", "2"),
            (".5", "5.", "5.5"),
            ("0x10", "0X.8", "16.5"),
            ("0x1p3", "0x1P-1", "8.5"),
            ("1e400", "-1e400", "0"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("18446744073709551616", "1", "18446744073709551616"),
            ("18446744073709551616", "3", "18446744073709551620"),
            ("18446744073709551616", "-0.1", "18446744073709551616"),
            ("9223372036854775808", "-0.5", "9223372036854775807.5"),
            ("1e-4950", "0", "0"),
        ];
        for (a, b, expected) in rows {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
            assert_eq!(sum(b, a).as_deref(), Some(expected), "{b} + {a}");
        }
        assert_eq!(sum("1e4932", "0").unwrap().len(), 4933);
    }

    #[test]
    fn texts_that_are_not_numbers_are_refused() {
        let long = "1".repeat(TEXT_BYTES_LIMIT);
        let rows = [
            "",
            " 1",
            "1 ",
            "+",
            "-",
            ".",
            "e1",
            "1e",
            "1e+",
            "0x",
            "0x.",
            "0x1p",
            "1.2.3",
            "1,5",
            "nan",
            "NaN",
            "-nan",
            "1e5000",
            "1e-5000",
            "1e99999999999999999999",
            "1\0",
            "--1",
            "0x1p-16446",
            "0x1p16384",
            "infinit",
            &long,
        ];
        for text in rows {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text:?}");
        }
        for text in ["inf", "-INFINITY", "+Inf"] {
            assert!(!LongDouble::parse(text.as_bytes()).unwrap().is_finite());
        }
        assert!(LongDouble::parse(b"0e99999999999999999999").is_some());
        assert!(LongDouble::parse(b"0x1p-16445").is_some());
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("1.1e4932", "1.1e4932"), None);
    }
}
