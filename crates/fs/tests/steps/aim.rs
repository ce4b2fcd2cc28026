//! Aims steps at existing names and directories, since most random ones fail.

use thalweg_fs::{Cookie, Filesystem, Kind};

use super::{EXACT, NAMES, Step, Twin, name};

/// Directories of the second filesystem, and the names in them, as steps number them.
#[derive(Default)]
struct Targets {
    directories: Vec<usize>,
    names: Vec<(usize, u8, Kind)>,
}

async fn targets(naive: &dyn Filesystem, twins: &[Twin]) -> Targets {
    let mut targets = Targets::default();
    for (number, (_, ino)) in twins.iter().enumerate() {
        let Ok(entries) = naive.read_directory(*ino, Cookie::START, usize::MAX, false).await else {
            continue;
        };
        targets.directories.push(EXACT + number);
        for entry in entries {
            let known = (0..NAMES).find(|it| name(*it) == entry.name);
            targets.names.extend(known.map(|known| (EXACT + number, known, entry.kind)));
        }
    }
    targets
}

/// The step, three times of four with names and directories that exist.
pub async fn aim(step: &Step, naive: &dyn Filesystem, twins: &[Twin]) -> Step {
    let first = step.inodes()[0];
    let Targets { directories, names } = targets(naive, twins).await;
    if first.is_multiple_of(4) || names.is_empty() || directories.is_empty() {
        return step.clone();
    }
    let directory = |number: usize| directories[number % directories.len()];
    let existing = |number: usize, is_directory: bool| {
        let fits = |it: &&(usize, u8, Kind)| (it.2 == Kind::Directory) == is_directory;
        let fitting: Vec<_> = names.iter().filter(fits).collect();
        let all: Vec<_> = if fitting.is_empty() { names.iter().collect() } else { fitting };
        let (directory, name, _) = all[number % all.len()];
        (*directory, *name)
    };
    match *step {
        Step::Lookup(number, _) => {
            let (directory, name) = existing(number, number % 3 == 0);
            Step::Lookup(directory, name)
        }
        Step::Create(number, name, kind, mode) => Step::Create(directory(number), name, kind, mode),
        Step::Link(ino, number, name) => Step::Link(ino, directory(number), name),
        Step::Unlink(number, _) => {
            let (directory, name) = existing(number, false);
            Step::Unlink(directory, name)
        }
        Step::Rmdir(number, _) => {
            let (directory, name) = existing(number, true);
            Step::Rmdir(directory, name)
        }
        Step::Rename((number, _), (other, name), how) => {
            let from = existing(number, number % 3 == 0);
            let to = match other % 3 {
                0 => existing(other, number % 3 == 0),
                _ => (directory(other), name),
            };
            Step::Rename(from, to, how)
        }
        ref other => other.clone(),
    }
}
