//! Deliberate bugs as remarks in the code, and the code that they become in a copy of it.
//!
//! A remark is a comment line of its own, `// bug NAME: FORM`, in front of the code that it breaks. Of the forms,
//! - `never` and `always` fix the next condition: that of an `if` or `while`, or the guard of a match arm;
//! - `skip` leaves the next statement out, `skip if C` where `C` holds;
//! - `let P = E;` binds the names of `P` again, behind the `let` that bound them;
//! - `` `A` is `B` `` evaluates `B` where `A` stands next;
//! - anything else is a list of statements that run at this place.
//!
//! Each takes effect only while its bug is switched on, so one build holds them all.

use super::tokens::{self, Token};
use anyhow::{Context, Result, bail, ensure};

pub(crate) const BEGIN: &str = "// bug ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remark<'a> {
    pub name: &'a str,
    /// Number of its line, from 1.
    pub line: usize,
    /// Offset of its line's first character that is not a space.
    at: usize,
    form: &'a str,
}

#[derive(Debug)]
struct Insertion {
    at: usize,
    /// Bytes that the insertion and its counterpart enclose. Of two that open at one offset, the longer is outside.
    span: usize,
    is_end: bool,
    text: String,
}

pub(crate) fn remarks(text: &str) -> impl Iterator<Item = Remark<'_>> {
    let mut offset = 0;
    text.split_inclusive('\n').enumerate().filter_map(move |(number, line)| {
        let begin = offset;
        offset += line.len();
        let rest = line.trim_start();
        let (name, form) = rest.strip_prefix(BEGIN)?.split_once(": ")?;
        let at = begin + (line.len() - rest.len());
        Some(Remark { name, line: number + 1, at, form: form.trim_end() })
    })
}

/// Returns `text` with each remark as code that calls `switch` with the bug's name, a path to a function. Lines keep
/// their numbers.
pub(crate) fn expand(text: &str, switch: &str) -> Result<String> {
    let tokens = tokens::of(text)?;
    let mut insertions = Vec::new();
    for remark in remarks(text) {
        let next = tokens.partition_point(|token| token.range.start < remark.at);
        let active = format!("{switch}({:?})", remark.name);
        let of_remark = insertions_of(&remark, &tokens[next..], &active);
        let about = || format!("line {}, bug {}: {}", remark.line, remark.name, remark.form);
        insertions.extend(of_remark.with_context(about)?);
    }
    Ok(inserted(text, insertions))
}

fn insertions_of(remark: &Remark<'_>, next: &[Token], active: &str) -> Result<Vec<Insertion>> {
    let form = remark.form;
    match form {
        "never" => condition(next, active, false),
        "always" => condition(next, active, true),
        "skip" => skip(next, active),
        _ if form.starts_with("skip if ") => {
            skip(next, &format!("{active} && ({})", &form["skip if ".len()..]))
        }
        _ if form.starts_with('`') => replacement(form, next, active),
        _ if form.starts_with("let ") => {
            let (names, value) = form["let ".len()..].split_once(" = ").context("no ` = `")?;
            let value = value.strip_suffix(';').context("no `;` at the end")?;
            let bound = names.replace("mut ", "");
            let text = format!("let {names} = if {active} {{ {value} }} else {{ {bound} }}; ");
            Ok(vec![Insertion { at: remark.at, span: 0, is_end: false, text }])
        }
        _ => {
            let text = format!("if {active} {{ {form} }} ");
            Ok(vec![Insertion { at: remark.at, span: 0, is_end: false, text }])
        }
    }
}

/// Fixes the condition of the next `if` or `while`, or the guard of the next match arm.
fn condition(next: &[Token], active: &str, value: bool) -> Result<Vec<Insertion>> {
    let mut depth = 0_i32;
    for (at, token) in next.iter().enumerate() {
        match token.text.as_str() {
            "if" | "while" => return fixed(next, at + 1, active, value),
            "=>" if depth == 0 => {
                ensure!(!value, "an arm without a guard cannot be taken always");
                let (at, text) = (token.range.start, format!("if !{active} "));
                return Ok(vec![Insertion { at, span: 0, is_end: false, text }]);
            }
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
    }
    bail!("no condition follows")
}

fn fixed(next: &[Token], first: usize, active: &str, value: bool) -> Result<Vec<Insertion>> {
    let (mut depth, mut has_let, mut last) = (0_i32, false, None);
    for (at, token) in next.iter().enumerate().skip(first) {
        match token.text.as_str() {
            "{" | "=>" if depth == 0 => {
                last = Some(at - 1);
                break;
            }
            "let" if depth == 0 => has_let = true,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
    }
    let (start, end) = span(next, first, last.context("the condition has no end")?)?;
    match (has_let, value) {
        (true, true) => bail!("a pattern cannot match always"),
        (true, false) => {
            let text = format!(" && !{active}");
            Ok(vec![Insertion { at: end, span: end - start, is_end: true, text }])
        }
        (false, true) => Ok(around(start, end, &format!("{active} || ("), ")")),
        (false, false) => Ok(around(start, end, &format!("!{active} && ("), ")")),
    }
}

fn skip(next: &[Token], condition: &str) -> Result<Vec<Insertion>> {
    let last = tokens::statement(next).context("no statement follows")?;
    let (start, end) = span(next, 0, last)?;
    Ok(around(start, end, &format!("if !({condition}) {{ "), " }"))
}

/// Evaluates another expression where the named one stands next.
fn replacement(form: &str, next: &[Token], active: &str) -> Result<Vec<Insertion>> {
    let inner = form.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
    let (from, to) = inner.and_then(|it| it.split_once("` is `")).context("not `A` is `B`")?;
    let wanted = tokens::of(from)?;
    let found = (0..next.len()).find_map(|at| Some((at, tokens::matched(&wanted, &next[at..])?)));
    let (first, count) = found.with_context(|| format!("`{from}` does not follow"))?;
    let (start, end) = span(next, first, first + count - 1)?;
    Ok(around(start, end, &format!("(if {active} {{ {to} }} else {{ "), " })"))
}

fn around(start: usize, end: usize, before: &str, behind: &str) -> Vec<Insertion> {
    let insertion = |at, is_end, text: &str| {
        let text = text.to_owned();
        Insertion { at, span: end - start, is_end, text }
    };
    vec![insertion(start, false, before), insertion(end, true, behind)]
}

fn span(tokens: &[Token], first: usize, last: usize) -> Result<(usize, usize)> {
    let (first, last) = (tokens.get(first), tokens.get(last));
    let (first, last) = first.zip(last).context("no code follows")?;
    ensure!(first.range.start < last.range.end, "no code follows");
    Ok((first.range.start, last.range.end))
}

fn inserted(text: &str, mut insertions: Vec<Insertion>) -> String {
    // At one offset, what ends comes before what begins; inner ends and outer beginnings come first.
    insertions.sort_by_key(|it| match it.is_end {
        true => (it.at, 0, it.span),
        false => (it.at, 1, usize::MAX - it.span),
    });
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for insertion in insertions {
        out.push_str(&text[from..insertion.at]);
        out.push_str(&insertion.text);
        from = insertion.at;
    }
    out.push_str(&text[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(form: &str, code: &str) -> String {
        let code: String = code.lines().map(|line| format!("    {line}\n")).collect();
        let text = format!("fn f() {{\n    // bug log.a: {form}\n{code}}}\n");
        let out = expand(&text, "active").unwrap();
        assert_eq!(out.lines().count(), text.lines().count());
        syn::parse_file(&out).unwrap();
        let body: Vec<&str> = out.lines().skip(1).map(str::trim).collect();
        body[..body.len() - 1].join(" ").replace("active(\"log.a\")", "BUG")
    }

    #[test]
    fn remarks_are_found_with_name_and_line() {
        let text =
            "fn f() {\n    // bug log.a: never\n    if a {}\n    // A bug of another kind.\n}\n";
        let found: Vec<Remark<'_>> = remarks(text).collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name, found[0].line, found[0].form), ("log.a", 2, "never"));
        assert_eq!(remarks("let a = \"// bug log.a: never\";\n").count(), 0);
    }

    #[test]
    fn a_condition_is_never_or_always_true() {
        let comment = "// bug log.a: never ";
        let of = |code: &str| expanded("never", code).strip_prefix(comment).unwrap().to_owned();
        assert_eq!(of("if a || b { c(); }"), "if !BUG && (a || b) { c(); }");
        assert_eq!(
            of("let x = if a { b } else { c };"),
            "let x = if !BUG && (a) { b } else { c };"
        );
        assert_eq!(
            of("if let Some(a) = b && a > 1 { c(); }"),
            "if let Some(a) = b && a > 1 && !BUG { c(); }"
        );
        assert_eq!(of("while a(|| { b }) { c(); }"), "while !BUG && (a(|| { b })) { c(); }");
        let arm = "match a { Some(b) if b => c(), _ => d() }";
        assert_eq!(of(arm), "match a { Some(b) if !BUG && (b) => c(), _ => d() }");
        let always = expanded("always", "if a && b { c(); }");
        assert_eq!(always, "// bug log.a: always if BUG || (a && b) { c(); }");
    }

    #[test]
    fn an_arm_without_a_guard_is_never_taken() {
        let text = "fn f() {\n    match a {\n        // bug log.a: never\n        Some(b) => c(),\n        _ => d(),\n    }\n}\n";
        let out = expand(text, "active").unwrap();
        assert!(out.contains("Some(b) if !active(\"log.a\") => c(),"), "{out}");
        assert!(expand(&text.replace("never", "always"), "active").is_err());
    }

    #[test]
    fn a_statement_is_skipped_run_or_bound_again() {
        let of = |form: &str, code: &str| {
            let out = expanded(form, code);
            out.strip_prefix(&format!("// bug log.a: {form} ")).unwrap_or(&out).to_owned()
        };
        assert_eq!(of("skip", "a([b; 1])?; c();").as_str(), "if !(BUG) { a([b; 1])?; } c();");
        assert_eq!(
            of("skip if n > 1", "for a in b { c(); } d();"),
            "if !(BUG && (n > 1)) { for a in b { c(); } } d();"
        );
        assert_eq!(
            of("skip", "if a { b(); } else { c(); } d();"),
            "if !(BUG) { if a { b(); } else { c(); } } d();"
        );
        let ran = expanded("return Ok(());", "a()");
        assert_eq!(ran, "if BUG { return Ok(()); } // bug log.a: return Ok(()); a()");
        let bound = expanded("let (mut a, b) = (1, 2);", "c(a)");
        assert!(
            bound.starts_with("let (mut a, b) = if BUG { (1, 2) } else { (a, b) }; "),
            "{bound}"
        );
        let tokens = "fn f() {\n    // bug log.a: skip\n    let a = b;\n}\n";
        assert!(expand(tokens, "active").is_err());
    }

    #[test]
    fn an_expression_is_replaced_where_it_stands_next() {
        let form = "`a.b(c, d)` is `None`";
        let out = expanded(form, "x(); y(z, a.b(\n    c,\n    d,\n).e());");
        assert!(out.contains("y(z, (if BUG { None } else { a.b( c, d, ) }).e());"), "{out}");
        assert!(expand("fn f() {\n    // bug log.a: `q` is `r`\n    a();\n}\n", "active").is_err());
    }

    #[test]
    fn several_bugs_of_one_place_nest() {
        let text = "fn f() {\n    // bug log.a: skip\n    // bug log.b: never\n    // bug log.c: g();\n    \
                    // bug log.d: `h(1)` is `2`\n    if a == h(1) { b(); }\n}\n";
        let out = expand(text, "on").unwrap();
        let last = out.lines().nth(5).unwrap().trim();
        assert_eq!(
            last,
            "if !(on(\"log.a\")) { if !on(\"log.b\") && (a == (if on(\"log.d\") { 2 } else { h(1) })) { b(); } }"
        );
        assert!(out.lines().nth(3).unwrap().contains("if on(\"log.c\") { g(); }"));
        syn::parse_file(&out).unwrap();
    }
}
