//! The ratchet file: what is measured, section by section, and may only fall.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::TidyError;

/// Where the ratchet file is, relative to the workspace.
pub const FILE: &str = "crates/tidy/ratchet.toml";
/// The command that lowers the numbers of the ratchet file to what is measured.
pub const UPDATE: &str = "TIDY_UPDATE=1 cargo test -p thalweg-tidy";

/// Stands for the reason in the line that a message proposes for a new exception.
const PLACEHOLDER: &str = "WHY";

/// What the entries of a section are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers, which may fall.
    Numbers,
    /// Exceptions, each with its reason in a line. They may go.
    Reasons,
}

/// A section of the ratchet file.
#[derive(Debug)]
pub(crate) struct Section {
    /// The name of its table.
    pub(crate) name: &'static str,
    /// What its entries are, for the reader of the file.
    pub(crate) about: &'static str,
    pub(crate) kind: Kind,
}

/// An entry of the ratchet file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Number(u64),
    Reason(String),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Reason(reason) => f.write_str(&quoted(reason)),
        }
    }
}

/// What one section measures in the sources: for each key a number (1 for an exception), and where to look.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    found: BTreeMap<String, (u64, Vec<String>)>,
}

impl Measured {
    /// Notes a number; of two with one key, the larger counts.
    pub(crate) fn number(&mut self, key: &str, number: u64, place: String) {
        let found = self.found.entry(key.into()).or_default();
        if number > found.0 {
            *found = (number, vec![place]);
        }
    }

    /// Counts one more at `key`.
    pub(crate) fn count(&mut self, key: &str, place: String) {
        let found = self.found.entry(key.into()).or_default();
        found.0 += 1;
        found.1.push(place);
    }

    /// Notes an exception.
    pub(crate) fn exception(&mut self, key: &str, place: String) {
        let found = self.found.entry(key.into()).or_default();
        found.0 = 1;
        found.1.push(place);
    }

    /// All places of all keys.
    pub(crate) fn places(&self) -> impl Iterator<Item = &str> {
        self.found.values().flat_map(|(_, places)| places).map(String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn numbers(&self) -> Vec<(&str, u64)> {
        self.found.iter().map(|(key, (number, _))| (key.as_str(), *number)).collect()
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> Vec<&str> {
        self.found.keys().map(String::as_str).collect()
    }
}

/// The contents of the ratchet file.
#[derive(Debug, Default)]
pub(crate) struct Ratchet {
    sections: BTreeMap<&'static str, BTreeMap<String, Entry>>,
}

impl Ratchet {
    /// Parses the file's text. A section that the file does not have is empty.
    pub(crate) fn parse(text: &str, sections: &[Section]) -> Result<Self, TidyError> {
        let table: toml::Table = text
            .parse()
            .map_err(|error| TidyError::Toml { path: FILE.into(), source: Box::new(error) })?;
        let field =
            |field: String, expected| TidyError::Field { path: FILE.into(), field, expected };
        let mut ratchet = Self::default();
        for (name, entries) in table {
            let section = sections.iter().find(|section| section.name == name);
            let section = section.ok_or_else(|| field(format!("[{name}]"), "a known section"))?;
            let toml::Value::Table(entries) = entries else {
                return Err(field(name, "a table"));
            };
            let known = ratchet.sections.entry(section.name).or_default();
            for (key, value) in entries {
                let entry = match (section.kind, value) {
                    (Kind::Numbers, toml::Value::Integer(number)) => {
                        let number = u64::try_from(number);
                        Entry::Number(number.map_err(|_| field(key.clone(), "a positive number"))?)
                    }
                    (Kind::Reasons, toml::Value::String(reason))
                        if !["", PLACEHOLDER].contains(&reason.trim()) =>
                    {
                        Entry::Reason(reason)
                    }
                    (Kind::Numbers, _) => return Err(field(key, "a number")),
                    (Kind::Reasons, _) => return Err(field(key, "a reason in quotes")),
                };
                known.insert(key, entry);
            }
        }
        Ok(ratchet)
    }

    /// The file's text.
    pub(crate) fn text(&self, sections: &[Section]) -> String {
        let mut text = format!(
            "# What the sources still owe to their rules. Numbers may only fall, and exceptions may only go.\n\
             # After an improvement: {UPDATE}\n"
        );
        for section in sections {
            text.push('\n');
            for line in section.about.lines() {
                let _ = writeln!(text, "# {line}");
            }
            let _ = writeln!(text, "[{}]", section.name);
            for (key, entry) in self.sections.get(section.name).into_iter().flatten() {
                let _ = writeln!(text, "{} = {entry}", quoted(key));
            }
        }
        text
    }

    /// Compares a section with what was measured, and lowers its entries to that. Entries that have risen stay as
    /// they are.
    pub(crate) fn compare(&mut self, section: &Section, measured: &Measured) -> Vec<Change> {
        let entries = self.sections.entry(section.name).or_default();
        let mut changes = Vec::new();
        let change = |key: &str, was, is, places: &[String]| Change {
            section: section.name,
            key: key.into(),
            was,
            is,
            places: places.to_vec(),
        };
        for (key, (number, places)) in &measured.found {
            let is = match section.kind {
                Kind::Numbers => Entry::Number(*number),
                Kind::Reasons => Entry::Reason(PLACEHOLDER.into()),
            };
            match entries.get_mut(key) {
                None => changes.push(change(key, None, Some(is), places)),
                Some(Entry::Number(was)) if was != number => {
                    changes.push(change(key, Some(Entry::Number(*was)), Some(is), places));
                    *was = (*was).min(*number);
                }
                Some(_) => {}
            }
        }
        entries.retain(|key, was| {
            let stays = measured.found.contains_key(key);
            if !stays {
                changes.push(change(key, Some(was.clone()), None, &[]));
            }
            stays
        });
        changes
    }
}

/// A difference between the ratchet file and the sources.
#[derive(Debug)]
pub(crate) struct Change {
    section: &'static str,
    key: String,
    was: Option<Entry>,
    is: Option<Entry>,
    places: Vec<String>,
}

/// How many places a change shows.
const PLACES: usize = 20;

impl Change {
    /// Whether the sources became worse.
    pub(crate) fn is_rise(&self) -> bool {
        match (&self.was, &self.is) {
            (_, None) => false,
            (Some(Entry::Number(was)), Some(Entry::Number(is))) => is > was,
            (_, Some(_)) => true,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = quoted(&self.key);
        match (&self.was, &self.is) {
            (Some(was), Some(is)) => {
                write!(f, "[{}] {key} = {is}  # the file says {was}", self.section)?
            }
            (None, Some(is)) => write!(f, "[{}] {key} = {is}  # not in the file", self.section)?,
            (_, None) => write!(f, "[{}] {key} is gone", self.section)?,
        }
        if self.is_rise() {
            for place in self.places.iter().take(PLACES) {
                write!(f, "\n      {place}")?;
            }
            if self.places.len() > PLACES {
                write!(
                    f,
                    "\n      and {} more: TIDY_LIST=1 shows all",
                    self.places.len() - PLACES
                )?;
            }
        }
        Ok(())
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: Section = Section { name: "lengths", about: "Lines.", kind: Kind::Numbers };
    const CIRCLES: Section = Section { name: "circles", about: "Why.", kind: Kind::Reasons };
    const SECTIONS: &[Section] = &[LENGTHS, CIRCLES];
    const TEXT: &str =
        "[lengths]\n\"a\" = 600\n\"b\" = 700\n\n[circles]\n\"x <-> y\" = \"one state\"\n";

    fn lengths(numbers: &[(&str, u64)]) -> Measured {
        let mut measured = Measured::default();
        for (key, number) in numbers {
            measured.number(key, *number, format!("{key}:1"));
        }
        measured
    }

    fn ratchet() -> Ratchet {
        Ratchet::parse(TEXT, SECTIONS).unwrap()
    }

    #[test]
    fn equal_numbers_are_no_change() {
        let changes = ratchet().compare(&LENGTHS, &lengths(&[("a", 600), ("b", 700)]));
        assert!(changes.is_empty(), "{changes:?}");
    }

    #[test]
    fn a_number_that_rises_is_found_and_not_taken_over() {
        let mut ratchet = ratchet();
        let changes = ratchet.compare(&LENGTHS, &lengths(&[("a", 601), ("b", 700)]));
        let [change] = &changes[..] else { panic!("{changes:?}") };
        assert!(change.is_rise());
        assert_eq!(change.to_string(), "[lengths] \"a\" = 601  # the file says 600\n      a:1");
        assert!(ratchet.text(SECTIONS).contains("\"a\" = 600\n"));
    }

    #[test]
    fn a_new_entry_is_found_and_not_taken_over() {
        let mut ratchet = ratchet();
        let changes = ratchet.compare(&LENGTHS, &lengths(&[("a", 600), ("b", 700), ("c", 501)]));
        let [change] = &changes[..] else { panic!("{changes:?}") };
        assert!(change.is_rise());
        assert!(!ratchet.text(SECTIONS).contains("\"c\""));
    }

    #[test]
    fn a_number_that_falls_is_found_and_taken_over() {
        let mut ratchet = ratchet();
        let changes = ratchet.compare(&LENGTHS, &lengths(&[("a", 590)]));
        let shown: Vec<_> = changes.iter().map(Change::to_string).collect();
        assert_eq!(
            shown,
            ["[lengths] \"a\" = 590  # the file says 600", "[lengths] \"b\" is gone"]
        );
        assert!(changes.iter().all(|change| !change.is_rise()));
        let text = ratchet.text(SECTIONS);
        assert!(text.contains("\"a\" = 590\n") && !text.contains("\"b\""), "{text}");
    }

    #[test]
    fn exceptions_are_known_go_or_are_new() {
        let mut known = Measured::default();
        known.exception("x <-> y", "x.rs".into());
        assert!(ratchet().compare(&CIRCLES, &known).is_empty());

        known.exception("x <-> z", "x.rs".into());
        let changes = ratchet().compare(&CIRCLES, &known);
        let [change] = &changes[..] else { panic!("{changes:?}") };
        assert!(change.is_rise());
        assert!(change.to_string().starts_with("[circles] \"x <-> z\" = \"WHY\""), "{change}");

        let changes = ratchet().compare(&CIRCLES, &Measured::default());
        let [change] = &changes[..] else { panic!("{changes:?}") };
        assert!(!change.is_rise());
    }

    #[test]
    fn the_file_is_written_as_it_is_read() {
        let text = ratchet().text(SECTIONS);
        let again = Ratchet::parse(&text, SECTIONS).unwrap();
        assert_eq!(again.text(SECTIONS), text);
        assert!(text.contains("# Lines.\n[lengths]\n\"a\" = 600\n"), "{text}");
        assert!(text.contains("\"x <-> y\" = \"one state\"\n"), "{text}");
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let refused = |text: &str| Ratchet::parse(text, SECTIONS).unwrap_err().to_string();
        assert_eq!(
            refused("[lines]\n"),
            "crates/tidy/ratchet.toml: [lines] is missing or is not a known section"
        );
        assert!(refused("[circles]\n\"x <-> y\" = \" \"\n").contains("a reason in quotes"));
        assert!(refused("[circles]\n\"x <-> y\" = \"WHY\"\n").contains("a reason in quotes"));
        assert!(refused("[lengths]\n\"a\" = \"b\"\n").contains("a number"));
        assert!(refused("[lengths]\n\"a\" = -1\n").contains("a positive number"));
    }
}
