//! The two mounts of a self-test, each with a process that makes calls on it.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use thalweg_env::Env;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::agent::{Op, Reply};
use crate::failure::{Failure, Outcome};
use crate::places::NAME;

/// A call that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a check watches for something that it did not see at once, to say when it came.
const LATE: Duration = Duration::from_secs(1);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Times until something was seen.
pub(super) type Times = Vec<Duration>;

/// Where a mount is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A directory of this machine.
    Here(PathBuf),
    /// A directory of a machine that `ssh` reaches.
    There { host: String, directory: String },
}

impl Place {
    /// A directory, or `HOST:DIRECTORY`.
    pub(super) fn of(text: &str) -> Place {
        match text.split_once(':') {
            Some((host, directory))
                if !host.is_empty() && !host.contains('/') && directory.starts_with('/') =>
            {
                Place::There { host: host.to_owned(), directory: directory.to_owned() }
            }
            _ => Place::Here(text.into()),
        }
    }

    /// The command that makes calls there, and reads and writes at its standard streams.
    fn agent(&self) -> io::Result<Command> {
        let words = ["cluster", "selftest-agent"];
        match self {
            Place::Here(directory) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(words).arg(directory);
                Ok(command)
            }
            Place::There { host, directory } => {
                // The shell there takes the words apart.
                let directory = format!("'{}'", directory.replace('\'', "'\\''"));
                let mut command = Command::new("ssh");
                command.args(["-o", "BatchMode=yes", "--", host, NAME]).args(words).arg(directory);
                Ok(command)
            }
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Here(directory) => write!(f, "{}", directory.display()),
            Place::There { host, directory } => write!(f, "{host}:{directory}"),
        }
    }
}

/// A mount.
#[derive(Debug)]
pub(super) struct Side {
    env: Env,
    pub(super) place: Place,
    agent: Child,
    stream: BufReader<UnixStream>,
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

impl Side {
    /// Starts the process that makes calls on a mount.
    pub(super) fn start(env: &Env, place: Place) -> Outcome<Side> {
        let (agent, stream) = start(&place).map_err(|error| {
            Failure::of(&error).while_doing(format!("cannot start a process for {place}"))
        })?;
        Ok(Side { env: env.clone(), place, agent, stream: BufReader::new(stream) })
    }

    /// Sends a call.
    pub(super) async fn send(&mut self, op: &Op) -> Outcome<()> {
        let mut line = serde_json::to_vec(op)?;
        line.push(b'\n');
        self.stream.write_all(&line).await.map_err(|error| self.lost(&error))
    }

    /// The answer to the oldest call without one.
    pub(super) async fn receive(&mut self) -> Outcome<Reply> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        match self.env.timeout(PATIENCE, read).await {
            Some(Ok(0)) => Err(self.lost(&ErrorKind::UnexpectedEof.into())),
            Some(Ok(_)) => Ok(serde_json::from_str(&line)?),
            Some(Err(error)) => Err(self.lost(&error)),
            None => {
                let late = PATIENCE.as_secs();
                Err(Failure::new(format!("a call on {} took longer than {late} s", self.place)))
            }
        }
    }

    fn lost(&self, error: &io::Error) -> Failure {
        let help = match &self.place {
            Place::Here(_) => "look at the messages of the mount".to_owned(),
            Place::There { host, .. } => {
                format!("`ssh {host} {NAME} --version` has to work without a password")
            }
        };
        let what = format!("the process that makes calls on {} has ended", self.place);
        Failure::of(error).while_doing(what).help(help)
    }

    /// Makes a call, and waits for the answer.
    pub(super) async fn call(&mut self, op: Op) -> Outcome<Reply> {
        self.send(&op).await?;
        self.receive().await
    }

    /// Makes a call that must succeed.
    pub(super) async fn order(&mut self, op: Op) -> Outcome<()> {
        let what = format!("{} fails", op.words());
        self.expect(op, &Reply::Done, &what).await
    }

    /// Makes a call that must be answered with this.
    pub(super) async fn expect(&mut self, op: Op, wanted: &Reply, what: &str) -> Outcome<()> {
        let reply = self.call(op).await?;
        match reply == *wanted {
            true => Ok(()),
            false => Err(Failure::new(format!("{what} on {}: {}", self.place, text(&reply)))),
        }
    }

    /// Whether no answer has come, and none comes for `span`.
    pub(super) async fn is_quiet(&mut self, span: Duration) -> bool {
        self.env.timeout(span, self.stream.fill_buf()).await.is_none()
    }

    /// Ends the process, and starts another one.
    pub(super) fn restart(&mut self) -> Outcome<()> {
        *self = Side::start(&self.env, self.place.clone())?;
        Ok(())
    }

    /// Checks that a call is answered with something wanted now, and how long that took. When it is not, watches for how long it
    /// is not.
    pub(super) async fn sees(
        &mut self,
        times: &mut Times,
        op: Op,
        what: &str,
        is_wanted: impl Fn(&Reply) -> bool,
    ) -> Outcome<()> {
        let start = self.env.now();
        let first = self.call(op.clone()).await?;
        let took = self.env.now().since(start);
        if is_wanted(&first) {
            times.push(took);
            return Ok(());
        }
        let shown = format!("{what} is not seen at once on {}: {}", self.place, text(&first));
        Err(Failure::new(match self.waits_for(&op, is_wanted).await? {
            true => format!("{shown}; it is after {} ms", self.env.now().since(start).as_millis()),
            false => format!("{shown}; nor is it after {} s", LATE.as_secs()),
        }))
    }

    /// Makes a call again and again until it is answered with something wanted; whether it was before long.
    pub(super) async fn waits_for(
        &mut self,
        op: &Op,
        is_wanted: impl Fn(&Reply) -> bool,
    ) -> Outcome<bool> {
        let start = self.env.now();
        while self.env.now().since(start) <= LATE {
            if is_wanted(&self.call(op.clone()).await?) {
                return Ok(true);
            }
            self.env.sleep(LOOK).await;
        }
        Ok(false)
    }
}

fn start(place: &Place) -> io::Result<(Child, UnixStream)> {
    let (own, theirs) = StdUnixStream::pair()?;
    own.set_nonblocking(true)?;
    let own = UnixStream::from_std(own)?;
    let input = OwnedFd::from(theirs.try_clone()?);
    let output = OwnedFd::from(theirs);
    let mut command = place.agent()?;
    command.stdin(Stdio::from(input)).stdout(Stdio::from(output));
    // Ctrl-C is for this process, which then cleans up.
    command.process_group(0);
    Ok((command.spawn()?, own))
}

/// A call that replaces the content of a file.
pub(super) fn put(path: &str, text: &str) -> Op {
    Op::Put { path: path.to_owned(), text: text.to_owned() }
}

/// A call that reads a file.
pub(super) fn get(path: &str) -> Op {
    Op::Get { path: path.to_owned() }
}

/// Whether a reply is this content.
pub(super) fn is_text(wanted: &str) -> impl Fn(&Reply) -> bool {
    move |reply| matches!(reply, Reply::Text(text) if text == wanted)
}

/// Makes a file on one side; the other one has it in its caches. How fast that goes is what other checks are about.
pub(super) async fn make(one: &mut Side, two: &mut Side, path: &str, text: &str) -> Outcome<()> {
    one.order(put(path, text)).await?;
    match two.waits_for(&get(path), is_text(text)).await? {
        true => Ok(()),
        false => Err(Failure::new(format!("a new file does not come to {}", two.place))),
    }
}

/// A reply, in words.
pub(super) fn text(reply: &Reply) -> String {
    match reply {
        Reply::Done => "it succeeded".to_owned(),
        Reply::Busy => "a lock excludes it".to_owned(),
        Reply::Absent => "there is no such name".to_owned(),
        Reply::Stat { size, mode, .. } => format!("a file of {size} bytes with mode {mode:o}"),
        Reply::Names(names) => format!("the names are {names:?}"),
        Reply::Text(text) if text.len() > 60 => format!("there are {} bytes", text.len()),
        Reply::Text(text) => format!("the bytes are {text:?}"),
        Reply::Filled(bytes) => format!("{bytes} bytes are right"),
        Reply::Failed(error) => error.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_here_or_there() {
        let there = |host: &str, directory: &str| Place::There {
            host: host.to_owned(),
            directory: directory.to_owned(),
        };
        assert_eq!(Place::of("/mnt"), Place::Here("/mnt".into()));
        assert_eq!(Place::of("a/b:/c"), Place::Here("a/b:/c".into()));
        assert_eq!(Place::of("a:b"), Place::Here("a:b".into()));
        assert_eq!(Place::of("me@host:/it's"), there("me@host", "/it's"));
        let command = format!("{:?}", Place::of("host:/it's").agent().unwrap());
        assert!(command.contains(r"'/it'\\''s'"), "{command}");
    }
}
