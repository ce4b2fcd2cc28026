//! `thalweg wait FILE`: until files on mounts have come to a level; and how far they have come.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use thalweg_env::Env;
use thalweg_fs::Level;
use thalweg_fuse::files::levels;
use thalweg_fuse::mounts;

use crate::failure::{Failure, Outcome};
use crate::places::MOUNT_KIND;

/// One request of many, where no time is said.
const LONG: Duration = Duration::from_secs(1);

/// A file on a mount.
struct Waited<'a> {
    name: &'a str,
    file: Arc<File>,
}

impl Waited<'_> {
    fn open(name: &str) -> Outcome<Waited<'_>> {
        // A pipe that has no writer yet would wait for one.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(Path::new(name));
        let explain =
            |error: io::Error| Failure::of(&error).while_doing(format!("cannot open {name}"));
        let file = opened.map_err(explain)?;
        let found = file.metadata()?;
        if !found.is_file() && !found.is_dir() {
            return Err(Failure::new(format!("{name} is no file or directory")));
        }
        let device = (libc::major(found.dev()), libc::minor(found.dev()));
        let is_ours = |it: &mounts::Mount| it.kind == MOUNT_KIND && it.device == device;
        match mounts::list()?.iter().any(is_ours) {
            true => Ok(Waited { name, file: Arc::new(file) }),
            false => Err(Failure::new(format!("{name} is not on a mount of a Thalweg filesystem"))
                .help("findmnt --types fuse.thalweg lists these mounts")),
        }
    }

    async fn ask(&self) -> Outcome<Level> {
        let file = self.file.clone();
        blocking(move || levels::ask(&file)).await.map_err(|error| self.explain(error))
    }

    /// Has the kernel write the pages of the file that it has collected.
    async fn write_pages(&self) -> Outcome<()> {
        let file = self.file.clone();
        blocking(move || file.sync_all()).await.map_err(|error| self.explain(error))
    }

    async fn wait(&self, level: Level, within: Duration) -> Outcome<bool> {
        let file = self.file.clone();
        let waited = blocking(move || levels::wait(&file, level, within)).await;
        waited.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: io::Error) -> Failure {
        let name = self.name;
        match error.raw_os_error() {
            Some(libc::ENODATA) => Failure::new(format!(
                "{name} has not come to replicas: no replica of its volume is connected"
            ))
            .help("thalweg replica status VOLUME lists them"),
            Some(libc::ENOTTY) => Failure::new(format!(
                "the program that serves the mount of {name} is too old for this"
            ))
            .help("unmount it, and mount it again"),
            Some(libc::EIO) => {
                Failure::new(format!("changes of {name} were lost, or cannot be made durable"))
                    .help("the log of the mount says why")
            }
            _ => Failure::of(&error).while_doing(format!("cannot wait for {name}")),
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Prints how far each of the files has come.
pub(super) async fn ask(names: &[String], as_json: bool) -> Outcome<()> {
    let mut levels = Vec::new();
    for name in names {
        levels.push((name, Waited::open(name)?.ask().await?));
    }
    if as_json {
        let levels = levels.iter().map(|(file, level)| json!({ "file": file, "level": level }));
        println!("{}", serde_json::Value::from_iter(levels));
        return Ok(());
    }
    for (name, level) in levels {
        println!("{level:<9} {name}");
    }
    Ok(())
}

/// Waits until all of the files have come to a level.
pub(super) async fn wait(
    env: &Env,
    names: &[String],
    level: Level,
    timeout: Option<Duration>,
) -> Outcome<()> {
    // What is wrong with one of them is said before the first wait.
    let files = names.iter().map(|name| Waited::open(name)).collect::<Outcome<Vec<_>>>()?;
    let start = env.now();
    for waited in files {
        waited.write_pages().await?;
        loop {
            let passed = env.now().since(start);
            let left = timeout.map(|timeout| timeout.saturating_sub(passed));
            if waited.wait(level, left.unwrap_or(LONG)).await? {
                break;
            }
            if let Some(timeout) = timeout.filter(|timeout| env.now().since(start) >= *timeout) {
                return Err(Failure::new(format!(
                    "{} has not come to the level `{level}` within {} s",
                    waited.name,
                    timeout.as_secs_f64()
                )));
            }
        }
    }
    Ok(())
}
