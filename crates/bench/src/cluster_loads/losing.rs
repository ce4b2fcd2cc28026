//! Loads that suit a shared filesystem least: removing trees, work that another client looks at or takes part in.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thalweg_env::HashSet;

use super::stage::{Load, Stage, Timed, sync};
use super::usual::PER_S;
use crate::BenchError;
use crate::fs::loads::{SourceTree, command, threads};
use crate::machine::output;
use crate::peer::pause;
use crate::rig::failed;

/// The loads.
pub(crate) const LOADS: [Load; 6] = [
    Load { name: "rm", unit: PER_S, run: |stage| remove(stage, &stage.first) },
    Load { name: "rm_other", unit: PER_S, run: |stage| remove(stage, &stage.second) },
    Load { name: "untar_watched", unit: PER_S, run: untar_watched },
    Load { name: "append_one", unit: PER_S, run: |stage| append(stage, 1, appending) },
    Load { name: "append_two", unit: PER_S, run: |stage| append(stage, 2, appending) },
    Load { name: "git_status", unit: PER_S, run: git_status },
];

/// Lines that each client appends.
const LINES: f64 = 1_000.0;
/// Bytes of a line.
const LINE: usize = 64;
/// Rest between two looks at a tree.
const LOOKS: Duration = Duration::from_millis(10);
/// Units of the tree, of two files each, that differ between two branches: every one whose number this divides.
const CHANGED: usize = 4;

/// A client removes the tree that the first one has unpacked; in files per second.
fn remove(stage: &Stage<'_>, folder: &Path) -> Result<Timed, BenchError> {
    stage.tree.extract(&stage.first)?;
    sync(&stage.first)?;
    stage.time(SourceTree::FILES, || {
        command("rm", &["-r".as_ref(), &folder.join("tree")])?;
        sync(folder)
    })
}

/// The first client unpacks an archive while the second one lists the tree with attributes again and again. So no
/// directory is the first client's alone.
fn untar_watched(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                // A directory may be missing still.
                look(&stage.second).ok();
                pause(LOOKS);
            }
        });
        let timed = stage.time(SourceTree::FILES, || {
            stage.tree.extract(&stage.first)?;
            sync(&stage.first)
        });
        is_done.store(true, Ordering::Relaxed);
        timed
    })
}

/// Lists a tree, with the attributes of all; returns the number of its files.
fn look(folder: &Path) -> io::Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match fs::symlink_metadata(&path)?.is_dir() {
            true => files += look(&path)?,
            false => files += 1,
        }
    }
    Ok(files)
}

fn appending(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn line(client: usize, number: usize) -> String {
    format!("{:<1$}\n", format!("client {client} line {number}"), LINE - 1)
}

/// Clients append lines to one file, each by one write, and sync it at the end. Only the lines that are in the file
/// afterwards count.
fn append(
    stage: &Stage<'_>,
    clients: usize,
    open: fn(&Path) -> io::Result<File>,
) -> Result<Timed, BenchError> {
    let each = stage.count(LINES, 10);
    let folders = [&stage.first, &stage.second];
    open(&stage.first.join("log")).map_err(failed)?;
    let mut timed = stage.time(each * clients, || {
        threads(clients, |client| {
            let mut file = open(&folders[client].join("log"))?;
            (0..each).try_for_each(|number| file.write_all(line(client, number).as_bytes()))?;
            file.sync_all()
        })
    })?;
    let found = fs::read(stage.first.join("log")).map_err(failed)?;
    let found: HashSet<&[u8]> = found.split_inclusive(|byte| *byte == b'\n').collect();
    let written = (0..clients).flat_map(|client| (0..each).map(move |nth| line(client, nth)));
    let present = written.filter(|line| found.contains(line.as_bytes())).count();
    timed.lost = Some((each * clients - present) as u64);
    timed.operations = present as f64;
    Ok(timed)
}

/// Runs git in a repository, without the settings of this machine; returns what it printed.
fn git(folder: &Path, arguments: &[&str]) -> Result<String, BenchError> {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "-c", "user.name=bench", "-c", "user.email=bench"]);
    git.args(["-c", "gc.auto=0", "-c", "init.defaultBranch=main"]);
    git.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    output(git.arg("-C").arg(folder).args(arguments))
}

/// Makes a repository with branches `main` and `other` in a new folder; returns an archive of it.
fn make_repository(stage: &Stage<'_>) -> Result<SourceTree, BenchError> {
    stage.tree.and(|folder| {
        let folder = &folder.join("tree");
        git(folder, &["init", "--quiet"])?;
        git(folder, &["add", "."])?;
        git(folder, &["commit", "--quiet", "--message", "one"])?;
        git(folder, &["checkout", "--quiet", "-b", "other"])?;
        for unit in (0..SourceTree::FILES / 2).step_by(CHANGED) {
            let path = folder.join(format!("part{}/unit{unit}.c", unit / 20));
            let mut file = OpenOptions::new().append(true).open(path).map_err(failed)?;
            file.write_all(b"int changed;\n").map_err(failed)?;
        }
        git(folder, &["commit", "--quiet", "--all", "--message", "two"])?;
        git(folder, &["checkout", "--quiet", "main"])?;
        git(folder, &["gc", "--quiet"]).map(drop)
    })
}

/// A client asks for the status of a repository, which it knows, after another one has checked out another branch.
fn git_status(stage: &Stage<'_>) -> Result<Timed, BenchError> {
    make_repository(stage)?.extract(&stage.first)?;
    let [first, second] = [&stage.first, &stage.second].map(|folder| folder.join("tree"));
    for folder in [&first, &second] {
        status(folder)?;
    }
    git(&first, &["checkout", "--quiet", "other"])?;
    stage.time(1, || status(&second))
}

/// Asks for the status, which must be that nothing has changed.
fn status(folder: &Path) -> Result<(), BenchError> {
    match git(folder, &["status", "--porcelain"])? {
        said if said.is_empty() => Ok(()),
        said => {
            let first = said.lines().next().unwrap_or_default();
            let folder = folder.display();
            Err(BenchError::Failed(format!("{folder} differs from its commit: {first}").into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::on_stage;
    use super::*;

    #[test]
    fn every_load_works_on_a_plain_directory() {
        on_stage(|stage| {
            for load in LOADS {
                let first = stage.first.join(load.name);
                fs::create_dir(&first).unwrap();
                let Stage { env, tree, scale, seed, .. } = *stage;
                let second = first.clone();
                let timed = (load.run)(&Stage { env, first, second, tree, scale, seed }).unwrap();
                assert!(timed.operations >= 1.0 && timed.seconds > 0.0, "{}", load.name);
                assert_eq!(timed.lost.unwrap_or(0), 0, "{}", load.name);
                assert_eq!(timed.lost.is_some(), load.name.starts_with("append"), "{}", load.name);
            }
            assert!(!stage.first.join("rm/tree").exists());
            assert_eq!(look(&stage.first.join("untar_watched")).unwrap(), SourceTree::FILES);
            let log = fs::read_to_string(stage.first.join("append_two/log")).unwrap();
            assert_eq!((log.len(), log.lines().count()), (2 * 10 * LINE, 2 * 10));
            let other = stage.first.join("git_status/tree/part0/unit4.c");
            assert!(fs::read_to_string(other).unwrap().ends_with("int changed;\n"));
        });
    }

    #[test]
    fn lines_that_overwrite_each_other_do_not_count() {
        on_stage(|stage| {
            let overwriting = |path: &Path| {
                OpenOptions::new().create(true).truncate(false).write(true).open(path)
            };
            let timed = append(stage, 2, overwriting).unwrap();
            assert_eq!((timed.operations, timed.lost), (10.0, Some(10)));
            fs::remove_file(stage.first.join("log")).unwrap();
            let timed = append(stage, 1, overwriting).unwrap();
            assert_eq!((timed.operations, timed.lost), (10.0, Some(0)));
        });
    }

    #[test]
    fn a_client_that_sees_an_old_file_fails_the_status() {
        on_stage(|stage| {
            make_repository(stage).unwrap().extract(&stage.first).unwrap();
            let folder = stage.first.join("tree");
            status(&folder).unwrap();
            fs::write(folder.join("part0/unit1.c"), "stale").unwrap();
            let refused = status(&folder).unwrap_err().to_string();
            assert!(refused.contains("part0/unit1.c"), "{refused}");
        });
    }
}
