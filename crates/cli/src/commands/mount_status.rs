//! The status of the mount of a filesystem that another machine shares.

use std::fmt::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use thalweg_env::Env;

use super::mounted::{canonical, mount_on, no_server, server_folder};
use crate::control::Client;
use crate::date::span;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::progress::{Report, Silent};
use crate::request::{Answer, Request, unexpected_answer};
use crate::size::Size;

/// The fields of a mount's status that are shown. A mount of another version may send more, or fewer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct View {
    address: String,
    client: ClientView,
    pending: PendingView,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClientView {
    connected: bool,
    ended: bool,
    lost: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PendingView {
    changes: u64,
    bytes: u64,
    files: u64,
    oldest_ms: Option<u64>,
    in_journal: ChangesView,
    undurable: u64,
    refused: Option<String>,
    journal: Option<JournalView>,
    journal_failed: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChangesView {
    changes: u64,
    bytes: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JournalView {
    session: String,
    incarnation: Option<u64>,
    size: u64,
    used: u64,
    records: u64,
    copies: Vec<CopyView>,
    sides: Vec<SideView>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SideView {
    device: String,
    is_current: bool,
    state: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CopyView {
    keeper: String,
    is_durable: bool,
    state: String,
    why: Option<String>,
}

/// Asks the process that serves a mount.
pub(super) async fn ask_mount(
    directory: &Path,
    request: &Request,
    report: &dyn Report,
) -> Outcome<Value> {
    let found = mount_on(&canonical(directory)?)?;
    let folder = server_folder(&found).await?.ok_or_else(|| no_server(&found))?;
    let mut client = Client::connect(&folder).await?.ok_or_else(|| no_server(&found))?;
    match client.ask(request, report).await? {
        Answer::Json(found) => Ok(found),
        _ => Err(unexpected_answer()),
    }
}

/// The status of the mount of a shared filesystem.
pub(super) async fn mount_status(directory: &Path) -> Outcome<Value> {
    ask_mount(directory, &Request::Pending, &Silent).await
}

/// The status of a mount, for a person.
pub(super) fn mount_text(status: Value) -> Outcome<String> {
    let view: View = serde_json::from_value(status)?;
    text(&view).map_err(|error| Failure::of(&error))
}

fn text(view: &View) -> Result<String, fmt::Error> {
    let (mut out, View { address, client, pending }) = (String::new(), view);
    let state = match (client.connected, client.ended) {
        (true, _) => "connected",
        (false, false) => "AWAY: changes wait for the server",
        (false, true) => "ENDED: the server has ended the session; mount it again",
    };
    writeln!(out, "{address}")?;
    writeln!(out, "  server      {state}")?;
    match pending.changes {
        0 => writeln!(out, "  pending     nothing")?,
        changes => writeln!(
            out,
            "  pending     {changes} changes of {} files, {}, the oldest {} old",
            pending.files,
            Size(pending.bytes),
            span(pending.oldest_ms.unwrap_or_default())
        )?,
    }
    if let Some(why) = &pending.refused {
        writeln!(out, "  REFUSED     the server does not take the oldest of them: {why}")?;
    }
    if pending.undurable > 0 {
        writeln!(out, "  answered    {} calls are not durable at the server", pending.undurable)?;
    }
    if client.lost > 0 {
        writeln!(out, "  LOST        {} changes: the log of the mount says why", client.lost)?;
    }
    if pending.journal_failed {
        writeln!(
            out,
            "  journal     FAILED, and is not used: fsync waits for the server; mount it again"
        )?;
    }
    let Some(journal) = &pending.journal else { return Ok(out) };
    let ChangesView { changes, bytes } = pending.in_journal;
    writeln!(out, "  in journal  {changes} of the pending changes, {}", Size(bytes))?;
    let JournalView { session, incarnation, size, used, records, copies, sides } = journal;
    writeln!(out, "  journal     {} of {} in {records} records", Size(*used), Size(*size))?;
    let mount = incarnation.map_or(String::new(), |number| format!(", incarnation {number}"));
    writeln!(out, "  session     {session}{mount}")?;
    for SideView { device, is_current, state } in sides {
        match is_current {
            true => writeln!(out, "  device      {device}")?,
            false => writeln!(
                out,
                "  DEGRADED    {device} is {state}; the journal is on the other device alone"
            )?,
        }
    }
    for CopyView { keeper, is_durable, state, why } in copies {
        let place = if *is_durable { "on its drive" } else { "in memory" };
        match (&**state, why) {
            ("current", _) => writeln!(out, "  copy        at {keeper}, {place}")?,
            (_, Some(why)) => {
                writeln!(out, "  NO COPY     at {keeper}: {why}; fsync waits for the server")?
            }
            (_, None) => writeln!(out, "  NO COPY     at {keeper}; fsync waits for the server")?,
        }
    }
    Ok(out)
}

/// Shows the status of the mount of a shared filesystem, once or repeatedly.
pub(super) async fn show_mount(
    env: &Env,
    directory: &Path,
    (json, interval): (bool, Option<Duration>),
) -> Outcome<u8> {
    loop {
        let status = mount_status(directory).await?;
        match json {
            true => println!("{status}"),
            false => {
                output::clear_screen(interval.is_some());
                print!("{}", mount_text(status)?);
            }
        }
        output::flush();
        match interval {
            Some(interval) if !output::is_closed() => env.sleep(interval).await,
            _ => return Ok(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mount_with_a_journal_is_shown() {
        let status = json!({
            "address": "server:/db",
            "client": { "connected": false, "ended": false, "lost": 2 },
            "pending": {
                "changes": 12, "bytes": 4096, "files": 3, "oldest_ms": 12_300, "undurable": 5,
                "refused": "a quota is exceeded",
                "in_journal": { "changes": 10, "bytes": 4000 },
                "journal": { "session": "s", "incarnation": 2, "size": 1 << 20, "used": 512, "records": 1 },
            },
        });
        let text = mount_text(status).unwrap();
        for line in [
            "AWAY",
            "pending     12 changes of 3 files, 4 KiB, the oldest 12.3 s old",
            "REFUSED     the server does not take the oldest of them: a quota is exceeded",
            "5 calls are not durable",
            "LOST        2 changes",
            "in journal  10 of the pending changes",
            "512 B of 1 MiB in 1 records",
            "session     s, incarnation 2",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let failed = json!({ "pending": { "journal_failed": true } });
        assert!(mount_text(failed).unwrap().contains("journal     FAILED"));
        let nothing = mount_text(json!({ "client": { "connected": true } })).unwrap();
        assert!(
            nothing.contains("pending     nothing") && !nothing.contains("journal"),
            "{nothing}"
        );
    }
}
