//! Every command line that README and docs show is one that the program accepts.

use std::path::Path;

use clap::Parser;

use super::Cli;

/// The shown commands: indented lines without their comments, continued lines joined, split at `&&`.
fn shown(page: &str) -> Vec<Vec<String>> {
    let page = page.replace("\\\n", " ");
    let code = page.lines().filter_map(|line| line.strip_prefix("    "));
    let commands = code.flat_map(|line| {
        let line = line.split_once(" #").map_or(line, |(code, _)| code);
        line.split("&&").map(|command| command.split_whitespace().map(str::to_owned).collect())
    });
    commands.filter(|words: &Vec<String>| words.first().is_some_and(|it| it == "thalweg")).collect()
}

/// The words of the program itself: a redirection is the shell's.
fn own_words(words: &[String]) -> &[String] {
    words.split(|word| matches!(&**word, ">" | "|" | "<")).next().unwrap_or_default()
}

#[test]
fn commands_are_found_in_a_page() {
    let page =
        "    thalweg a b \\\n        --c   # more\n    x && thalweg d > e\ntext\n    other f\n";
    let found = shown(page);
    assert_eq!(found, [vec!["thalweg", "a", "b", "--c"], vec!["thalweg", "d", ">", "e"]]);
    assert_eq!(own_words(&found[1]), ["thalweg", "d"]);
}

#[test]
fn documented_commands_are_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    let mut count = 0;
    for path in pages.chain([root.join("README.md")]) {
        for words in shown(&std::fs::read_to_string(&path).unwrap()) {
            count += 1;
            if let Err(error) = Cli::try_parse_from(own_words(&words)) {
                panic!("{}: {}: {error}", path.display(), words.join(" "));
            }
        }
    }
    assert!(count >= 30, "only {count} commands were found");
}
