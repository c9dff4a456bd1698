//! Prose of a file: comments and string literals of Rust, and all of any other text. Code spans
//! between backticks are left out.

/// Returns the prose of a file by line, from 1.
pub(crate) fn of(path: &str, text: &str) -> Vec<(usize, String)> {
    let parts = if path.ends_with(".rs") { of_rust(text) } else { of_text(text) };
    parts.into_iter().map(|(line, part)| (line, without_code_spans(&part))).collect()
}

/// Returns the comments of Rust code: the line on which each begins, and its text without marks. Lines of
/// comment that follow each other, with no code before them, are one comment.
pub(crate) fn comments(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut inside = Inside::Code;
    let mut is_open = false;
    for (number, line) in text.lines().enumerate() {
        let (mut rest, mut code, mut comment) = (line, String::new(), None);
        while let Some(next) = rest.chars().next() {
            let before = inside;
            let (read, _, then) = step(before, rest, next);
            match before {
                Inside::LineComment => comment = Some(rest.trim_start_matches(['/', '!']).trim()),
                _ => code.push_str(&rest[..read]),
            }
            (rest, inside) = (&rest[read..], then);
        }
        if inside == Inside::LineComment {
            (comment, inside) = (comment.or(Some("")), Inside::Code);
        }
        let is_own_line = code.trim_matches(['/', '!', ' ']).is_empty();
        match (comment, found.last_mut()) {
            (Some(part), Some((_, whole))) if is_open && is_own_line => {
                whole.push(' ');
                whole.push_str(part);
            }
            (Some(part), _) => found.push((number + 1, part.to_owned())),
            (None, _) => {}
        }
        is_open = comment.is_some() && is_own_line;
    }
    found
}

fn of_text(text: &str) -> Vec<(usize, String)> {
    text.lines().enumerate().map(|(number, line)| (number + 1, line.to_owned())).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Inside {
    Code,
    LineComment,
    String,
    /// Raw string that ends at a quote and this number of `#`.
    Raw(usize),
}

fn of_rust(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = Inside::Code;
    for (number, line) in text.lines().enumerate() {
        let mut part = String::new();
        let mut rest = line;
        while let Some(next) = rest.chars().next() {
            let (read, is_prose, then) = step(inside, rest, next);
            if is_prose {
                part.push_str(&rest[..read]);
            } else {
                part.push(' ');
            }
            rest = &rest[read..];
            inside = then;
        }
        if inside == Inside::LineComment {
            inside = Inside::Code;
        }
        if !part.trim().is_empty() {
            found.push((number + 1, part));
        }
    }
    found
}

/// Returns the bytes of the next piece of `rest`, whether it is prose, and the context after it.
fn step(inside: Inside, rest: &str, next: char) -> (usize, bool, Inside) {
    let one = next.len_utf8();
    match inside {
        Inside::LineComment => (rest.len(), true, inside),
        Inside::String if next == '\\' => {
            let escaped = rest[one..].chars().next().map_or(0, char::len_utf8);
            (one + escaped, false, inside)
        }
        Inside::String if next == '"' => (one, false, Inside::Code),
        Inside::Raw(hashes) if rest[one..].starts_with(&"#".repeat(hashes)) && next == '"' => {
            (one + hashes, false, Inside::Code)
        }
        Inside::String | Inside::Raw(_) => (one, true, inside),
        Inside::Code if rest.starts_with("//") => {
            // The comment marks do not belong to the sentence.
            (rest.len() - rest.trim_start_matches(['/', '!']).len(), false, Inside::LineComment)
        }
        Inside::Code => of_code(rest, next),
    }
}

fn of_code(rest: &str, next: char) -> (usize, bool, Inside) {
    let one = next.len_utf8();
    if next.is_alphanumeric() || next == '_' {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let after = &rest[word..];
        let hashes = after.len() - after.trim_start_matches('#').len();
        if matches!(&rest[..word], "r" | "br") && after[hashes..].starts_with('"') {
            return (word + hashes + 1, false, Inside::Raw(hashes));
        }
        return (word, false, Inside::Code);
    }
    match next {
        '"' => (one, false, Inside::String),
        '\'' => (character(rest), false, Inside::Code),
        _ => (one, false, Inside::Code),
    }
}

/// Returns the bytes of a character literal, or of the apostrophe of a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            rest[2..].char_indices().skip(1).find(|it| it.1 == '\'').map_or(1, |it| it.0 + 3)
        }
        Some(_) => chars.next().filter(|it| it.1 == '\'').map_or(1, |it| it.0 + 1),
        None => 1,
    }
}

fn without_code_spans(text: &str) -> String {
    let even = text.matches('`').count() / 2 * 2;
    let spans = text.split('`').enumerate();
    spans.map(|(at, part)| if at % 2 == 1 && at < even { " " } else { part }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_of_rust_is_its_comments_and_strings() {
        let text = "let a = b'\"'; // one\nlet s = \"two \\\" three\";\n/// `code` four 'x\n\
                    let r = br#\"five \"six\"\"#; let l: &'static str = x;\n";
        let words = |(line, text): (usize, String)| {
            (line, text.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let found: Vec<_> = of("a.rs", text).into_iter().map(words).collect();
        let expected = [(1, "one"), (2, "two three"), (3, "four 'x"), (4, "five \"six\"")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn lines_of_comment_that_follow_each_other_are_one_comment() {
        let text = "//! one\n//!\n//! two\n\n/// three\nfn a() {\n    b(\"// no\"); // four\n    // five\n    \
                    // six\n    c();\n}\n";
        let expected = [(1, "one  two"), (5, "three"), (7, "four"), (8, "five six")];
        assert_eq!(comments(text), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn a_string_of_several_lines_is_prose_on_each() {
        let found = of("a.rs", "f(\"one \\\n  two\");\ng(three)\n");
        assert_eq!(found.len(), 2);
        assert!(found[0].1.contains("one") && found[1].1.contains("two"), "{found:?}");
    }

    #[test]
    fn other_text_is_prose_but_for_code_spans() {
        assert_eq!(of("a.md", "a `b` c\nd ` e"), [(1, "a   c".into()), (2, "d  e".to_owned())]);
    }
}
