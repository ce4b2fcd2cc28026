//! Prose in Rust sources and Markdown pages, in paragraphs.

/// Lines of prose that belong together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Paragraph {
    /// Each line's number, counted from 1, and its text without the comment's marker.
    pub(crate) lines: Vec<(usize, String)>,
}

impl Paragraph {
    /// The lines in one, code spans and addresses of links replaced by `~`, and for each line where it begins
    /// and its number.
    pub(crate) fn joined(&self) -> (String, Vec<(usize, usize)>) {
        let mut text = String::new();
        let mut starts = Vec::new();
        for (number, line) in &self.lines {
            if !text.is_empty() {
                text.push(' ');
            }
            starts.push((text.len(), *number));
            text.push_str(line);
        }
        (without_code(&text), starts)
    }
}

/// Replaces what is between backticks, and the address of `[text](address)`, by as many `~`.
fn without_code(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let hidden = if rest.starts_with('`') {
            let ticks = rest.len() - rest.trim_start_matches('`').len();
            let fence = &rest[..ticks];
            rest[ticks..].find(fence).map_or(0, |length| ticks + length + ticks)
        } else if rest.starts_with("](") {
            rest.find(')').map_or(0, |end| end + 1)
        } else {
            0
        };
        if hidden > 0 {
            plain.push_str(&"~".repeat(hidden));
            rest = &rest[hidden..];
        } else {
            plain.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    plain
}

/// Puts lines together to paragraphs: they end at an empty line, before a heading, before an item of a list, before a
/// row of a table, and where the kind of comment changes. Fenced code is left out.
#[derive(Default)]
struct Paragraphs {
    done: Vec<Paragraph>,
    open: Paragraph,
    kind: &'static str,
    fenced: bool,
}

impl Paragraphs {
    fn line(&mut self, number: usize, kind: &'static str, text: &str) {
        let adjacent = self.open.lines.last().is_none_or(|(last, _)| last + 1 >= number);
        if !adjacent || kind != self.kind {
            self.end();
            self.fenced = false;
        }
        self.kind = kind;
        let text = text.trim();
        if text.starts_with("```") {
            self.fenced = !self.fenced;
            self.end_line(number);
            return;
        }
        if self.fenced {
            self.end_line(number);
            return;
        }
        let heading = text.starts_with('#');
        if text.is_empty() || heading || starts_item(text) {
            self.end();
        }
        self.open.lines.push((number, text.into()));
        if text.is_empty() || heading {
            self.end();
        }
    }

    /// Ends the paragraph, but not the comment: what follows at the next line still belongs to it.
    fn end_line(&mut self, number: usize) {
        self.end();
        self.open.lines.push((number, String::new()));
    }

    fn end(&mut self) {
        let paragraph = std::mem::take(&mut self.open);
        if paragraph.lines.iter().any(|(_, text)| !text.is_empty()) {
            self.done.push(paragraph);
        }
    }

    fn finish(mut self) -> Vec<Paragraph> {
        self.end();
        self.done
    }
}

fn starts_item(text: &str) -> bool {
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    text.starts_with("- ")
        || text.starts_with("* ")
        || text.starts_with('|')
        || (number.len() < text.len() && number.starts_with(". "))
}

/// The prose of a Markdown page.
pub(crate) fn markdown(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    for (index, line) in text.lines().enumerate() {
        paragraphs.line(index + 1, "markdown", line);
    }
    paragraphs.finish()
}

/// The comments of a Rust source.
pub(crate) fn rust(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    let mut scanner = Scanner { rest: text, line: 1 };
    while let Some((line, comment)) = scanner.next_comment() {
        let (kind, body) = kind_and_body(comment);
        for (index, text) in body.split('\n').enumerate() {
            let text = if kind == "/*" { text.trim_start().trim_start_matches('*') } else { text };
            paragraphs.line(line + index, kind, text);
        }
    }
    paragraphs.finish()
}

fn kind_and_body(comment: &str) -> (&'static str, &str) {
    if let Some(body) = comment.strip_prefix("/*") {
        return ("/*", body.strip_suffix("*/").unwrap_or(body));
    }
    for kind in ["//!", "///", "//"] {
        if let Some(body) = comment.strip_prefix(kind) {
            return (kind, body);
        }
    }
    ("", comment)
}

/// Finds comments in Rust source, beside literals.
struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn next_comment(&mut self) -> Option<(usize, &'a str)> {
        while let Some(first) = self.rest.chars().next() {
            let line = self.line;
            let token = token_length(self.rest, first);
            let text = self.take(token);
            if text.starts_with("//") || text.starts_with("/*") {
                return Some((line, text));
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (text, rest) = self.rest.split_at(length);
        self.line += text.matches('\n').count();
        self.rest = rest;
        text
    }
}

/// The length of the token at the start of `text`, of which comments, literals and words are whole.
fn token_length(text: &str, first: char) -> usize {
    let all = text.len();
    match first {
        '/' if text.starts_with("//") => text.find('\n').unwrap_or(all),
        '/' if text.starts_with("/*") => block_comment_length(text),
        '"' => string_length(text),
        '\'' => quote_length(text),
        _ if first.is_alphanumeric() || first == '_' => {
            let word = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(all);
            // A prefix of a literal: `b"`, `r#"`, `b'`.
            let after = &text[word..];
            if matches!(&text[..word], "r" | "br" | "cr") {
                word + raw_string_length(after)
            } else if matches!(&text[..word], "b" | "c") && after.starts_with('"') {
                word + string_length(after)
            } else {
                word
            }
        }
        _ => first.len_utf8(),
    }
}

fn block_comment_length(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a literal between quotes like the first character, with escapes.
fn string_length(text: &str) -> usize {
    let mut chars = text.char_indices();
    let quote = chars.next().map(|(_, quote)| quote);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if Some(c) == quote {
            return at + c.len_utf8();
        }
    }
    text.len()
}

/// The length of `#"..."#` after its prefix; 0 if that is none.
fn raw_string_length(text: &str) -> usize {
    let hashes = text.len() - text.trim_start_matches('#').len();
    if !text[hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = hashes + 1;
    text[body..].find(&end).map_or(text.len(), |length| body + length + end.len())
}

/// The length of a character or of the quote of a lifetime.
fn quote_length(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => string_length(text),
        (Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(paragraphs: &[Paragraph]) -> Vec<String> {
        let line = |(number, text): &(usize, String)| format!("{number} {text}");
        let lines = |p: &Paragraph| {
            let lines = p.lines.iter().filter(|(_, text)| !text.is_empty()).map(line);
            lines.collect::<Vec<_>>().join("; ")
        };
        paragraphs.iter().map(lines).collect()
    }

    #[test]
    fn comments_are_found_beside_literals() {
        let source = r####"//! One
//! two.
//!
//! Three.
fn f<'a>(x: &'a str) { // Four.
    let s = "// no \" // no"; // five.
    let r = r#"// no " // no"#;
    let c = ('/', '\'', '"', b'/'); // Six.
    /* Seven /* nested */
       eight. */
    let r#type = br"\"; // Nine.
}
/// Ten.
// Eleven.
"####;
        let expected = [
            "1 One; 2 two.",
            "4 Three.",
            "5 Four.; 6 five.",
            "8 Six.",
            "9 Seven /* nested; 10 eight.",
            "11 Nine.",
            "13 Ten.",
            "14 Eleven.",
        ];
        let found = shown(&rust(source));
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found.replace(" */", ""), expected);
        }
    }

    #[test]
    fn fenced_code_is_no_prose() {
        let source = "/// One.\n/// ```\n/// code\n///\n/// ```\n/// Two.\n";
        assert_eq!(shown(&rust(source)), ["1 One.", "6 Two."]);
        let page =
            "# Title\nOne\ntwo.\n- three\n  four\n- five\n\n```sh\ncode\n```\n| six |\n| seven |\n";
        let expected = [
            "1 Title",
            "2 One; 3 two.",
            "4 - three; 5 four",
            "6 - five",
            "11 | six |",
            "12 | seven |",
        ];
        let found: Vec<_> = shown(&markdown(page)).iter().map(|p| p.replace("# ", "")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn code_spans_and_addresses_are_hidden() {
        let of = |text: &str| Paragraph { lines: vec![(7, text.into())] }.joined().0;
        assert_eq!(of("a `home` b"), "a ~~~~~~ b");
        assert_eq!(of("a ``x`y`` b"), "a ~~~~~~~ b");
        assert_eq!(of("[a](home.md) b"), "[a~~~~~~~~~~ b");
        assert_eq!(of("an open ` tick"), "an open ` tick");
    }

    #[test]
    fn a_joined_paragraph_knows_its_lines() {
        let paragraph = Paragraph { lines: vec![(3, "ab".into()), (4, "cd".into())] };
        assert_eq!(paragraph.joined(), ("ab cd".into(), vec![(0, 3), (3, 4)]));
    }
}
