//! Words to avoid in comments and documentation.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use crate::comments::{self, Paragraph};
use crate::ratchet::Measured;
use crate::sources::Sources;

/// Words to avoid: a pattern, uses of it that are right, and what to write instead.
struct Word {
    pattern: &'static str,
    /// A match that overlaps one of this pattern is right. Empty: none is.
    except: &'static str,
    instead: &'static str,
}

/// Nouns for people, which take `who`, and questions.
const PEOPLE: &str = r"(?i)\b(users?|people|persons?|authors?|engineers?|maintainers?|administrators?|developers?|operators?|programmers?|everyone|everybody|anyone)( \w+)?,? whom?\b|\bwho\b[^.]*\?";

const WORDS: &[Word] = &[
    Word {
        pattern: r"(?i)\b(who|whom)\b",
        except: PEOPLE,
        instead: "name what acts: a writer that, the caller",
    },
    Word {
        pattern: r"(?i)\b(whoever|whomever|somebody|someone|nobody|anybody)\b",
        except: r"(?i)\buser nobody\b",
        instead: "name what acts",
    },
    Word {
        pattern: r"\b(He|he|His|his|Him|him)\b",
        except: "",
        instead: "it, its; or name what acts",
    },
    Word {
        pattern: r"(?:^|[.:;!?] )(Others|All that|Whatever)\b",
        except: "",
        instead: "name what acts",
    },
    Word {
        // As a subject: before a verb.
        pattern: r"\bothers (are|were|have|had|may|might|can|could|must|would|should|will|do|did|wait|come|came|see|go|went|share|read|write|keep|hold|held|change|changed|take|took|run|open|need|look|know|commit|make|made|get|got|use)\b|\ball that (is|was|comes|came|follows?|lies)\b",
        // "The others" and "these and others" refer to what was named.
        except: r"(?i)\b(the|most|these) others\b|\w and others\b",
        instead: "name what acts",
    },
    Word { pattern: r"[.;!?] What\b", except: r"\bWhat\b[^.]*\?", instead: "begin with the noun" },
    Word {
        pattern: r"(?i)\bhome\b",
        except: r"(?i)[/$~]home\b|\bhome (director|folder|page)|\b(a|one's|user's) home\b",
        instead: "in place; written back; under writeback",
    },
    Word {
        pattern: r"(?i)\bdue (pages?|blocks?|changes?)\b|\b(pages?|blocks?|changes?) (that )?(is|are|was|were) due\b",
        except: "",
        instead: "dirty; committed, not yet written back",
    },
    Word {
        pattern: r"(?i)\b(stands?|stood|standing) against\b",
        except: "",
        instead: "conflicts with",
    },
    Word {
        pattern: r"(?i)\b(holds?|held|holding) (it |them |him |writers? )?back\b",
        except: "",
        instead: "throttles; backpressure",
    },
    Word {
        pattern: r"(?i)\b(let|lets|letting) go\b|\b(give|gives|gave|given|giving) ((it|them|its \w+) )?back\b",
        except: "",
        instead: "releases",
    },
    Word { pattern: r"(?i)\b(with|on) (an arm|arms)\b", except: "", instead: "a rotational disk" },
    Word {
        pattern: r"(?i)\bturns? (of|for|between) (reads?|writes?|reading|writing|requests?)\b",
        except: "",
        instead: "scheduling; batches",
    },
    Word {
        pattern: r"(?i)\b(make|makes|made|making) no sense\b",
        except: "",
        instead: "is invalid: which field, found and expected",
    },
    Word {
        pattern: r"(?i)\bthe way of (an?|the) (write|read|flush|transaction|request|block|page)\b",
        except: "",
        instead: "the write path",
    },
    Word {
        pattern: r"(?i)\bon (its|their) way\b",
        except: "",
        instead: "in flight; under writeback",
    },
    Word {
        pattern: r"(?i)\bwhat is (not )?there\b",
        except: "",
        instead: "present, absent; allocated, a hole",
    },
    Word {
        pattern: r"(?i)\bmoments? of (the|a|its) (volume|filesystem)\b",
        except: "",
        instead: "a snapshot",
    },
    Word { pattern: r"(?i)\b(lead|leads|leading) nowhere\b", except: "", instead: "dangling" },
    Word {
        pattern: r"(?i)\bas (many|much|long|large) as there (could|can|may) be\b",
        except: "",
        instead: "the maximum",
    },
    Word {
        pattern: r"(?i)\b(is|are|was|were|be|been) waited\b",
        except: "",
        instead: "name what waits",
    },
];

/// Identifiers to avoid, wherever they stand in a Rust source. (The brackets keep this line from being counted.)
const NAMES: &[(&str, &str)] = &[(r"\bhold[_]back\b", "a name with throttle or backpressure")];

struct Patterns {
    pattern: Regex,
    except: Option<Regex>,
    instead: &'static str,
}

static PATTERNS: LazyLock<Vec<Patterns>> = LazyLock::new(|| {
    let compile = |pattern: &str| Regex::new(pattern).expect("the tests compile all patterns");
    let patterns = |word: &Word| Patterns {
        pattern: compile(word.pattern),
        except: (!word.except.is_empty()).then(|| compile(word.except)),
        instead: word.instead,
    };
    WORDS.iter().map(patterns).collect()
});

static NAME_PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let compile = |pattern: &str| Regex::new(pattern).expect("the tests compile all patterns");
    NAMES.iter().map(|(pattern, instead)| (compile(pattern), *instead)).collect()
});

/// Lines with words to avoid, for each crate, example, page.
pub(crate) fn measure(sources: &Sources) -> Measured {
    let rust = sources.with_extension("rs").map(|(path, text)| (path, find_in_rust(text)));
    let pages = sources.with_extension("md");
    let pages = pages.map(|(path, text)| (path, find(&comments::markdown(text))));
    let mut measured = Measured::default();
    for (path, lines) in rust.chain(pages) {
        for (line, words) in lines {
            measured.count(unit(path), format!("{path}:{line}: {}", words.join("; ")));
        }
    }
    measured
}

/// What the count of a file belongs to: a crate's folder, or a page.
fn unit(path: &str) -> &str {
    match path.match_indices('/').nth(1) {
        Some((end, _)) if path.starts_with("crates/") || path.starts_with("examples/") => {
            &path[..end]
        }
        _ if path.starts_with("fuzz/") => "fuzz",
        _ => path,
    }
}

fn find_in_rust(text: &str) -> BTreeMap<usize, Vec<String>> {
    let mut lines = find(&comments::rust(text));
    for (pattern, instead) in NAME_PATTERNS.iter() {
        for (index, line) in text.lines().enumerate() {
            if let Some(name) = pattern.find(line) {
                let words = lines.entry(index + 1).or_default();
                words.push(format!("\"{}\": {instead}", name.as_str()));
            }
        }
    }
    lines
}

/// The lines with words to avoid, each with its words and what to write instead.
fn find(paragraphs: &[Paragraph]) -> BTreeMap<usize, Vec<String>> {
    let mut lines: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for paragraph in paragraphs {
        let (text, starts) = paragraph.joined();
        for word in PATTERNS.iter() {
            let right: Vec<_> = word.except.iter().flat_map(|e| e.find_iter(&text)).collect();
            for captures in word.pattern.captures_iter(&text) {
                // The words themselves, without what stands before them.
                let Some(found) = captures.get(1).or(captures.get(0)) else { continue };
                let whole = captures.get(0).unwrap_or(found);
                if right.iter().any(|r| r.start() < whole.end() && whole.start() < r.end()) {
                    continue;
                }
                let before = starts.partition_point(|(start, _)| *start <= found.start());
                let line = before.checked_sub(1).map_or(0, |index| starts[index].1);
                let words = lines.entry(line).or_default();
                words.push(format!("\"{}\": {}", whole.as_str().trim(), word.instead));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        find(&comments::markdown(text)).into_keys().collect()
    }

    #[test]
    fn every_word_is_found() {
        let wrong = [
            "Waits as long as somebody who wrote.",
            "Whoever commits decides.",
            "Nobody knows.",
            "A caller who waits.",
            "The blocks of one who is gone.",
            "Delays him.",
            "It ends. Others wait.",
            "All that follows is lost.",
            "It ends, and others wait.",
            "It drops all that follows.",
            "It ends. What is left is dropped.",
            "Something went home directly.",
            "Brought home at last.",
            "The due pages.",
            "A page that is due.",
            "Nothing stands against it.",
            "A writer is held back.",
            "It lets go of the lock.",
            "It gives back the blocks.",
            "It gives them back.",
            "A drive with an arm.",
            "Turns of reads and writes.",
            "A field that makes no sense.",
            "The way of a write.",
            "Blocks on their way.",
            "Says what is there.",
            "Says what is not there.",
            "A moment of the volume.",
            "Names that lead nowhere.",
            "As many as there could be.",
            "The flush is waited for.",
        ];
        for text in wrong {
            assert_eq!(lines(text), [1], "{text}");
        }
        for word in PATTERNS.iter() {
            let seen = wrong.iter().any(|text| word.pattern.is_match(text));
            assert!(seen, "{} has no sample", word.pattern);
        }
    }

    #[test]
    fn right_uses_are_left_alone() {
        let right = [
            "Files in /home/alice and in $HOME.",
            "The user's home directory, a home of its own.",
            "A node on the way to the leaf.",
            "One of the others, all that I know.",
            "Some stay; the others have moved. Caches and others share it.",
            "A module `home` with `somebody` in it; [see](who.md).",
            "Users who mount it, and an administrator who looks.",
            "Who may do what?",
            "What a flush costs.",
            "What is promised? What is not?",
            "The user nobody may not.",
            "Others, such as ext4, do without.".trim_start_matches("Others, such as "),
            "The lease is due at noon, due to a timer.",
            "Measured in turns; wait your turn.",
            "A backing device; the backlog; going on.",
            "The arm moves to the cylinder.",
            "There is a way.",
        ];
        for text in right {
            assert_eq!(lines(text), Vec::<usize>::new(), "{text}");
        }
    }

    #[test]
    fn words_are_found_across_lines_and_counted_by_line() {
        let text = "A page lets\ngo of what\nsomebody, whoever it is, holds.\n\nNobody.\n";
        assert_eq!(lines(text), [1, 3, 5]);
    }

    #[test]
    fn names_are_found_in_code_and_comments() {
        let name = ["hold", "back"].join("_");
        let text = format!("/// Calls `{name}`.\nfn {name}() {{}}\nfn {name}_not() {{}}\n");
        assert_eq!(find_in_rust(&text).into_keys().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn counts_belong_to_crates_and_pages() {
        let sources = Sources::of(&[
            ("README.md", "Nobody.\n"),
            ("crates/a/src/lib.rs", "//! Nobody.\nconst S: &str = \"nobody\";\n"),
            ("crates/a/tests/t.rs", "// Nobody.\nfn nobody() {}\n// Nobody.\n"),
            ("docs/a.md", "Nobody.\n```\nnobody\n```\n"),
            ("fuzz/a.rs", "// Nobody.\n"),
        ]);
        let measured = measure(&sources);
        let expected = [("README.md", 1), ("crates/a", 3), ("docs/a.md", 1), ("fuzz", 1)];
        assert_eq!(measured.numbers(), expected);
    }
}
