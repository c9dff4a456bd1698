//! Numbers as Redis reads them.

/// Parses a decimal number as Redis does: no space, no `+`, no leading zero, no `-0`.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !is_negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    let mut number = 0i64;
    for &byte in digits {
        let digit = char::from(byte).to_digit(10)?;
        let digit = if is_negative { -i64::from(digit) } else { i64::from(digit) };
        number = number.checked_mul(10)?.checked_add(digit)?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shortest_form_of_a_number_is_one() {
        let rows = [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999999", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("+1", None),
            ("01", None),
            (" 1", None),
            ("1 ", None),
            ("1.0", None),
            ("\u{661}", None),
        ];
        for (text, number) in rows {
            assert_eq!(parse_i64(text.as_bytes()), number, "{text:?}");
        }
    }
}
