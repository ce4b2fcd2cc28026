//! Servers in processes of their own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::BenchError;

fn failed(what: impl Into<String>) -> BenchError {
    BenchError::Failed(what.into().into())
}

/// A server in a process of its own; dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        // SAFETY: the process is a child that was not waited for, so its number is not reused.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
        for _ in 0..1000 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            pause(Duration::from_millis(10));
        }
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Peer {
    /// Starts a server, and waits for its socket.
    pub(crate) fn start(
        program: &str,
        arguments: &[&str],
        socket: &Path,
    ) -> Result<Peer, BenchError> {
        let mut command = Command::new(program);
        Peer::until(command.args(arguments), || socket.exists())
            .map_err(|error| failed(format!("{error}: it does not listen")))
    }

    /// Starts a server, and waits 15 s at most until it is ready. The server has no standard output.
    pub(crate) fn until(
        command: &mut Command,
        is_ready: impl Fn() -> bool,
    ) -> Result<Peer, BenchError> {
        let mut peer = Peer::spawn(command.stdout(Stdio::null()))?;
        for _ in 0..1500 {
            if is_ready() {
                return Ok(peer);
            }
            if let Ok(Some(status)) = peer.0.try_wait() {
                return Err(failed(format!("{} ended with {status}", name(command))));
            }
            pause(Duration::from_millis(10));
        }
        Err(failed(format!("{} is not ready after 15 s", name(command))))
    }

    /// Starts a server that prints a line when it is ready; the server and the line.
    pub(crate) fn announced(command: &mut Command) -> Result<(Peer, String), BenchError> {
        let mut peer = Peer::spawn(command.stdout(Stdio::piped()))?;
        let mut line = String::new();
        if let Some(output) = peer.0.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(crate::rig::failed)?;
        }
        match line.is_empty() {
            true => Err(failed(format!("{} ended before it was ready", name(command)))),
            false => Ok((peer, line)),
        }
    }

    /// Kills the server by SIGKILL. Returns when it has ended.
    pub(crate) fn kill(mut self) -> Result<(), BenchError> {
        self.0.kill().map_err(crate::rig::failed)?;
        self.0.wait().map_err(crate::rig::failed)?;
        Ok(())
    }

    fn spawn(command: &mut Command) -> Result<Peer, BenchError> {
        let spawned = command.stdin(Stdio::null()).spawn();
        spawned.map(Peer).map_err(|error| failed(format!("{}: {error}", name(command))))
    }
}

/// The program's name.
fn name(command: &Command) -> String {
    Path::new(command.get_program()).display().to_string()
}

/// Blocks the calling thread: the benchmark itself runs outside of every environment.
#[allow(clippy::disallowed_methods)]
pub(crate) fn pause(span: Duration) {
    std::thread::sleep(span);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_server_ends_with_its_guard_and_an_early_end_is_an_error() {
        let (peer, line) = Peer::announced(&mut shell("echo ready; exec sleep 1000")).unwrap();
        assert_eq!(line, "ready\n");
        let process = format!("/proc/{}", peer.0.id());
        assert!(Path::new(&process).exists());
        drop(peer);
        assert!(!Path::new(&process).exists());
        let (peer, _) = Peer::announced(&mut shell("trap '' TERM; echo ready; sleep 1")).unwrap();
        let process = format!("/proc/{}", peer.0.id());
        peer.kill().unwrap();
        assert!(!Path::new(&process).exists());
        let early = Peer::announced(&mut shell("exit 3")).unwrap_err().to_string();
        assert!(early.contains("before it was ready"), "{early}");
        let early = Peer::until(&mut shell("exit 3"), || false).unwrap_err().to_string();
        assert!(early.contains("exit status: 3"), "{early}");
    }
}
