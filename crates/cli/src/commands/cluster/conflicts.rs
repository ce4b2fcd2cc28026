//! `thalweg cluster conflicts`: what a client could not write back that was away, in conflict copies.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use thalweg_cluster::conflicts::{ConflictEntry, ConflictKind, ConflictSet};

use super::conflict_sets::Sets;
use crate::failure::{Failure, Outcome};
use crate::size::Size;

/// Show, apply and drop conflict copies
///
/// A client with a journal that was away writes back what no other client has used meanwhile. The rest becomes a set of conflict
/// copies, beside the files: NAME.conflict-HOST-TIME.
#[derive(Debug, Subcommand)]
pub(crate) enum ConflictsCommand {
    List(List),
    Show(Show),
    Apply(Apply),
    Export(Export),
    Drop(Drop),
}

/// List the sets of conflict copies
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Where the shared filesystem is mounted, or a directory of it
    directory: PathBuf,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

/// Show what a set has
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Where the shared filesystem is mounted, or a directory of it
    directory: PathBuf,
    /// The set
    set: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Make the changes of a set in its files, and remove the copies
///
/// A file that was changed since the copy was made is left alone without --force. Where a copy has ranges alone, those
/// are written. A file keeps its owner, mode and other names. Attributes that were set are not set again: `show` names the files.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// Where the shared filesystem is mounted, or a directory of it
    directory: PathBuf,
    /// The set
    set: String,
    /// Also over files that were changed or made since
    #[arg(long)]
    force: bool,
}

/// Copy the copies of a set, and its list, to a new folder
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Where the shared filesystem is mounted, or a directory of it
    directory: PathBuf,
    /// The set
    set: String,
    /// The folder, which must not exist
    folder: PathBuf,
}

/// Remove the copies of a set; its changes are lost
#[derive(Debug, Args)]
pub(crate) struct Drop {
    /// Where the shared filesystem is mounted, or a directory of it
    directory: PathBuf,
    /// The set
    set: String,
}

pub(super) fn run(command: ConflictsCommand) -> Outcome<()> {
    match command {
        ConflictsCommand::List(args) => list(&args),
        ConflictsCommand::Show(args) => show(&args),
        ConflictsCommand::Apply(args) => apply(&args),
        ConflictsCommand::Export(args) => export(&args),
        ConflictsCommand::Drop(args) => remove(&args),
    }
}

/// A set of a user.
#[derive(Serialize)]
struct UserSet<'a> {
    user: Option<u32>,
    #[serde(flatten)]
    set: &'a ConflictSet,
}

fn list(List { directory, json }: &List) -> Outcome<()> {
    let sets = Sets::of(directory)?;
    let lists = sets.lists()?;
    let sets: Vec<ConflictSet> = lists.iter().map(Sets::read).collect::<Outcome<_>>()?;
    if *json {
        let all: Vec<UserSet> =
            lists.iter().zip(&sets).map(|(list, set)| UserSet { user: list.user, set }).collect();
        println!("{}", serde_json::to_string(&all)?);
        return Ok(());
    }
    if sets.is_empty() {
        println!("no conflict copies");
    }
    for (list, set) in lists.iter().zip(sets) {
        let (name, ConflictSet { changes, entries, why, .. }) = (list.name(), set);
        println!("{name}: {changes} changes of {} files and directories: {why}", entries.len());
    }
    Ok(())
}

fn show(Show { directory, set, json }: &Show) -> Outcome<()> {
    let set = Sets::read(&Sets::of(directory)?.find(set)?)?;
    if *json {
        println!("{}", serde_json::to_string(&set)?);
        return Ok(());
    }
    println!("{}: {} changes, refused since: {}", set.name, set.changes, set.why);
    for entry in &set.entries {
        let bytes: u64 = entry.ranges.iter().map(|(_, len)| len).sum();
        let path = entry.path.as_deref().unwrap_or("(gone)");
        let what = match entry.kind {
            ConflictKind::New => "new".to_owned(),
            ConflictKind::Complete => {
                format!("{} changed, of a file that others have read", Size(bytes))
            }
            ConflictKind::Ranges => {
                format!(
                    "{} in {} ranges, of a file that others have changed",
                    Size(bytes),
                    entry.ranges.len()
                )
            }
            ConflictKind::Attributes => "attributes".to_owned(),
        };
        let mut line = format!("{path}: {what}");
        if entry.removed {
            line.push_str(", removed");
        }
        for (verb, to) in entry
            .renamed
            .iter()
            .map(|to| ("renamed to", to))
            .chain(entry.linked.iter().map(|to| ("linked as", to)))
        {
            line.push_str(&format!(", {verb} {to}"));
        }
        match &entry.copy {
            Some(copy) => println!("{line}: {copy}"),
            None => println!("{line}"),
        }
    }
    Ok(())
}

fn apply(Apply { directory, set, force }: &Apply) -> Outcome<()> {
    let sets = Sets::of(directory)?;
    let found = sets.find(set)?;
    let mut list = Sets::read(&found)?;
    let since = fs::metadata(found.path())?;
    let made = (since.ctime(), since.ctime_nsec());
    let removed = list.entries.iter().filter(|entry| entry.removed || entry.renamed.is_some());
    let removed: Vec<String> = removed.filter_map(|entry| entry.path.clone()).collect();
    let when = Since { made, force: *force, removed };
    let (mut applied, mut left, mut moved) = (0, Vec::new(), Vec::new());
    // Names are free before another file takes them.
    list.entries.sort_by_key(|entry| !(entry.removed || entry.renamed.is_some()));
    for entry in std::mem::take(&mut list.entries) {
        // It lies in a directory that is a copy as a whole.
        let is_inside = |above: &&String| {
            entry.copy.as_ref().is_some_and(|copy| copy.starts_with(&format!("{above}/")))
        };
        if moved.iter().any(|above| is_inside(&above)) {
            applied += 1;
            continue;
        }
        match apply_one(&sets, &entry, &when) {
            Ok(()) => {
                applied += 1;
                moved.extend(entry.copy.clone().filter(|_| entry.kind == ConflictKind::New));
            }
            Err(error) => {
                eprintln!("{}: {error}", entry.path.as_deref().unwrap_or("a file that is gone"));
                left.push(entry);
            }
        }
    }
    if left.is_empty() {
        sets.forget(&found)?;
        println!("{applied} files and directories have the changes of {set}");
        return Ok(());
    }
    list.entries = left;
    let count = list.entries.len();
    fs::write(found.path(), serde_json::to_vec_pretty(&list)?)?;
    Err(Failure::new(format!("{applied} were applied, {count} are left in {set}")).help(
        "--force applies them also over what was changed since; export and drop take them away",
    ))
}

/// What may be changed by a set.
struct Since {
    /// When the copies were made.
    made: (i64, i64),
    /// Also what was changed since.
    force: bool,
    /// Paths of files that the set removes or renames.
    removed: Vec<String>,
}

impl Since {
    /// Fails if a file was changed since.
    fn check(&self, path: &Path) -> Outcome<()> {
        let now = fs::symlink_metadata(path)?;
        if (now.ctime(), now.ctime_nsec()) > self.made && !self.force {
            return Err(Failure::new("it was changed since the copy was made"));
        }
        Ok(())
    }
}

/// Makes the changes of one entry.
fn apply_one(sets: &Sets, entry: &ConflictEntry, when: &Since) -> Outcome<()> {
    if entry.kind != ConflictKind::New {
        apply_bytes(sets, entry, when)?;
        return apply_names(sets, entry, when);
    }
    let (Some(copy), Some(path)) = (&entry.copy, &entry.path) else {
        return Err(Failure::new("its directory is gone"));
    };
    let (copy, to) = (sets.at(copy)?, sets.at(path)?);
    if to.symlink_metadata().is_ok() {
        if !when.removed.contains(path) && !when.force {
            return Err(Failure::new("the name is another file's by now"));
        }
        when.check(&to)?;
    }
    Ok(fs::rename(&copy, &to)?)
}

/// Changes names of a file that was there.
fn apply_names(sets: &Sets, entry: &ConflictEntry, when: &Since) -> Outcome<()> {
    let Some(path) = &entry.path else { return Ok(()) };
    let path = sets.at(path)?;
    for linked in &entry.linked {
        fs::hard_link(&path, sets.at(linked)?)?;
    }
    if let Some(renamed) = &entry.renamed {
        let to = sets.at(renamed)?;
        if to.symlink_metadata().is_ok() && !when.force {
            return Err(Failure::new(format!("{renamed} is another file by now")));
        }
        fs::rename(&path, to)?;
    } else if entry.removed {
        match path.symlink_metadata()?.is_dir() {
            true => fs::remove_dir(&path)?,
            false => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

/// Writes the bytes of a copy to the file that was there.
fn apply_bytes(sets: &Sets, entry: &ConflictEntry, when: &Since) -> Outcome<()> {
    let has_names = entry.removed || entry.renamed.is_some();
    if entry.copy.is_none() && !has_names {
        return Ok(());
    }
    let Some(path) = &entry.path else {
        let copy = entry.copy.as_deref().unwrap_or_default();
        return Err(Failure::new(format!("it has no place any more; its copy is {copy}")));
    };
    let path = sets.at(path)?;
    when.check(&path)?;
    let Some(copy) = &entry.copy else { return Ok(()) };
    let copy = sets.at(copy)?;
    let (mut from, mut to) = (File::open(&copy)?, OpenOptions::new().write(true).open(&path)?);
    if entry.kind == ConflictKind::Complete {
        io::copy(&mut from, &mut to)?;
        to.set_len(from.metadata()?.len())?;
    } else {
        for (offset, len) in &entry.ranges {
            from.seek(SeekFrom::Start(*offset))?;
            to.seek(SeekFrom::Start(*offset))?;
            io::copy(&mut (&mut from).take(*len), &mut to)?;
        }
    }
    to.flush()?;
    to.sync_all()?;
    Ok(fs::remove_file(&copy)?)
}

fn export(Export { directory, set, folder }: &Export) -> Outcome<()> {
    let sets = Sets::of(directory)?;
    let found = sets.find(set)?;
    let list = Sets::read(&found)?;
    let failed = |error: io::Error| {
        Failure::of(&error).while_doing(format!("cannot write to {}", folder.display()))
    };
    fs::create_dir(folder).map_err(failed)?;
    let mut files = 0;
    for copy in list.entries.iter().filter_map(|entry| entry.copy.as_ref()) {
        let from = sets.at(copy)?;
        let to = folder.join(from.strip_prefix(&sets.root).unwrap_or(&from));
        let kind = from.symlink_metadata()?.file_type();
        if kind.is_dir() {
            fs::create_dir_all(&to).map_err(failed)?;
            continue;
        }
        if let Some(above) = to.parent() {
            fs::create_dir_all(above).map_err(failed)?;
        }
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to).map_err(failed)?;
        } else if kind.is_file() {
            fs::copy(&from, &to).map_err(failed)?;
        } else {
            continue;
        }
        files += 1;
    }
    let name = format!("{}.json", found.set);
    fs::write(folder.join(name), serde_json::to_vec_pretty(&list)?).map_err(failed)?;
    println!("{} has {files} copies of {set}", folder.display());
    Ok(())
}

fn remove(Drop { directory, set }: &Drop) -> Outcome<()> {
    let sets = Sets::of(directory)?;
    let found = sets.find(set)?;
    let list = Sets::read(&found)?;
    let mut removed = 0;
    // What lies in a directory goes before it.
    for copy in list.entries.iter().rev().filter_map(|entry| entry.copy.as_ref()) {
        let copy = sets.at(copy)?;
        let gone = match copy.symlink_metadata() {
            Ok(found) if found.is_dir() => fs::remove_dir(&copy),
            Ok(_) => fs::remove_file(&copy),
            Err(error) => Err(error),
        };
        match gone {
            Ok(()) => removed += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(
                    Failure::of(&error).while_doing(format!("cannot remove {}", copy.display()))
                );
            }
        }
    }
    sets.forget(&found)?;
    println!("{removed} copies of {set} are removed");
    Ok(())
}
