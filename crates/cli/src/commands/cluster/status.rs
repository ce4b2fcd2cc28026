//! `thalweg cluster status`: the server of a filesystem and its clients, once or repeatedly.

use std::fmt::{self, Write};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use thalweg_env::{Env, Time};

use crate::commands::ask::ask;
use crate::commands::status::{degraded_lines, exit_code, seconds};
use crate::control::Client;
use crate::daemon::standby::standing_by;
use crate::date::span;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::request::{Answer, Request, unexpected_answer};
use crate::size::Size;
use crate::target::Target;

/// Show the server of a filesystem and its clients
///
/// Of each client: the inodes that it knows, and those of which it caches something; its open files; its calls that run
/// (changes, opens and locks); and what it has changed that may not survive a crash of the server, which it would then change
/// again. Bytes are those of contents and names in calls and answers.
///
/// It begins with DEGRADED, and ends with 3, when something needs attention, of the server or of its volume.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The volume's folder, or its device
    volume: String,
    /// Show it again after so many seconds, 1 if none are given, with the rates since the last time; Ctrl-C ends that
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
    /// Print a JSON object, one on each line with --watch
    #[arg(long)]
    json: bool,
}

/// The fields of a status that are shown. A server of another version may send more, or fewer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct View {
    volume: String,
    role: String,
    standbys: Vec<u32>,
    expected: u64,
    connections: u64,
    undurable: u64,
    evictions: u64,
    refused_changes: u64,
    lapsed_journals: u64,
    room_recalls: u64,
    invalidations: Invalidations,
    received_bytes: u64,
    sent_bytes: u64,
    calls: Vec<Calls>,
    clients: Vec<ClientView>,
    degraded: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Invalidations {
    pending: u64,
    oldest_ms: Option<u64>,
    sent: u64,
    answered: u64,
    timed_out: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Calls {
    count: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClientView {
    client: String,
    path: String,
    read_only: bool,
    connected: bool,
    direct: bool,
    lapsed: bool,
    used: u64,
    silent_ms: u64,
    inodes: u64,
    cached: u64,
    open: u64,
    running: u64,
    undurable: u64,
    calls: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

/// Counts that rates are made of: calls, and bytes received and sent.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    calls: u64,
    received: u64,
    sent: u64,
}

impl Totals {
    /// What was counted in a second since `before`.
    fn rates(self, before: Totals, span: Duration) -> Totals {
        let rate = |now: u64, then: u64| {
            (now.saturating_sub(then) as f64 / span.as_secs_f64().max(1e-3)).round() as u64
        };
        Totals {
            calls: rate(self.calls, before.calls),
            received: rate(self.received, before.received),
            sent: rate(self.sent, before.sent),
        }
    }
}

impl View {
    fn totals(&self) -> Totals {
        let calls = self.calls.iter().map(|kind| kind.count).sum();
        Totals { calls, received: self.received_bytes, sent: self.sent_bytes }
    }
}

impl ClientView {
    fn totals(&self) -> Totals {
        Totals { calls: self.calls, received: self.received_bytes, sent: self.sent_bytes }
    }
}

pub(super) async fn status(env: &Env, args: Status) -> Outcome<u8> {
    let target = Target::volume(&args.volume)?;
    let mut before: Option<(View, Time)> = None;
    loop {
        let mut found = fetch(env, &target, args.json).await?;
        let now = env.now();
        let view: View = serde_json::from_value(found.clone())?;
        let last = before.as_ref().map(|(view, then)| (view, now.since(*then)));
        if args.json {
            if let Some((last, span)) = last {
                let Totals { calls, received, sent } = view.totals().rates(last.totals(), span);
                found["rates"] = json!({
                    "calls_per_s": calls,
                    "received_bytes_per_s": received,
                    "sent_bytes_per_s": sent,
                });
            }
            println!("{found}");
        } else {
            output::clear_screen(args.watch.is_some());
            print!("{}", text(&view, last).map_err(|error| Failure::of(&error))?);
        }
        output::flush();
        let code = exit_code(&found);
        match args.watch {
            Some(pause) if !output::is_closed() => env.sleep(pause).await,
            _ => return Ok(code),
        }
        before = Some((view, now));
    }
}

/// The status of the server, or of those that stand by if this machine has no other one.
async fn fetch(env: &Env, target: &Target, json: bool) -> Outcome<Value> {
    let standbys = standing_by(target);
    if !standbys.is_empty() && Client::connect_to_look(&target.folder).await?.is_none() {
        return Ok(json!({ "volume": target.name, "role": "stands by", "standbys": standbys }));
    }
    match ask(env, target, Request::Clients, json).await? {
        Answer::Json(mut found) => {
            found["standbys"] = standbys.into();
            Ok(found)
        }
        _ => Err(unexpected_answer()),
    }
}

fn text(view: &View, before: Option<(&View, Duration)>) -> Result<String, fmt::Error> {
    let mut out = degraded_lines(&view.degraded);
    let View { volume, role, standbys, clients, connections, .. } = view;
    if !standbys.is_empty() {
        let numbers: Vec<String> = standbys.iter().map(u32::to_string).collect();
        writeln!(out, "{volume}: process {} of this machine stands by", numbers.join(", "))?;
    }
    if role == "stands by" {
        writeln!(out, "{volume}: no process of this machine serves it")?;
        return Ok(out);
    }
    writeln!(out, "{volume}: serves {} clients over {connections} connections", clients.len())?;
    if view.expected > 0 {
        let expected = view.expected;
        writeln!(out, "WAITS for {expected} clients of the server before this one")?;
    }
    let Totals { calls, received, sent } = view.totals();
    let (received, sent) = (Size(received), Size(sent));
    write!(out, "calls          {calls}, {received} received, {sent} sent")?;
    if let Some((before, span)) = before {
        let Totals { calls, received, sent } = view.totals().rates(before.totals(), span);
        write!(out, "; now {calls}/s, {}/s, {}/s", Size(received), Size(sent))?;
    }
    writeln!(out)?;
    let Invalidations { pending, oldest_ms, sent, answered, timed_out } = &view.invalidations;
    write!(out, "invalidations  {sent} sent, {answered} answered, {timed_out} timed out; ")?;
    match oldest_ms {
        Some(oldest) => writeln!(out, "{pending} CALLS WAIT, the first for {}", span(*oldest))?,
        None => writeln!(out, "no call waits")?,
    }
    writeln!(out, "evictions      {}", view.evictions)?;
    writeln!(out, "room           recalled {} times", view.room_recalls)?;
    if view.refused_changes > 0 {
        let refused = view.refused_changes;
        writeln!(
            out,
            "LOST           {refused} changes of clients; the server's log names the files"
        )?;
    }
    if view.lapsed_journals > 0 {
        let lapsed = view.lapsed_journals;
        writeln!(out, "AWAY           {lapsed} clients with changes in their journals")?;
    }
    writeln!(out, "not durable    {} inodes and names", view.undurable)?;
    clients_table(&mut out, view, before)?;
    Ok(out)
}

fn clients_table(out: &mut String, view: &View, before: Option<(&View, Duration)>) -> fmt::Result {
    write!(out, "{:20} {:20} {:6} {:>9} {:>9}", "CLIENT", "PATH", "ACCESS", "INODES", "CACHED")?;
    write!(out, " {:>6} {:>7} {:>11}", "OPEN", "RUNNING", "NOT DURABLE")?;
    match before {
        Some(_) => writeln!(out, " {:>8} {:>12} {:>12}", "CALLS/s", "RECEIVED/s", "SENT/s")?,
        None => writeln!(out)?,
    }
    for it in &view.clients {
        let ClientView { client, path, inodes, cached, open, running, undurable, .. } = it;
        let access = if it.read_only { "ro" } else { "rw" };
        write!(out, "{client:20} {path:20} {access:6} {inodes:>9} {cached:>9}")?;
        write!(out, " {open:>6} {running:>7} {undurable:>11}")?;
        if let Some((before, span)) = before {
            let same = |then: &&ClientView| then.client == it.client && then.path == it.path;
            let then = before.clients.iter().find(same).map(ClientView::totals);
            let Totals { calls, received, sent } =
                it.totals().rates(then.unwrap_or_default(), span);
            let (received, sent) = (Size(received).to_string(), Size(sent).to_string());
            write!(out, " {calls:>8} {received:>12} {sent:>12}")?;
        }
        if it.direct {
            write!(out, "  direct")?;
        }
        if it.lapsed {
            write!(out, "  away with its journal, of which others have used {} inodes,", it.used)?;
        }
        match it.connected {
            true => writeln!(out)?,
            false => writeln!(out, "  not connected for {}", span(it.silent_ms))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(calls: u64, sent: u64) -> View {
        let name = "a".to_owned();
        let client = ClientView {
            client: name,
            direct: true,
            calls,
            sent_bytes: sent,
            ..Default::default()
        };
        let calls = vec![Calls { count: calls }];
        View {
            volume: "vol".to_owned(),
            calls,
            sent_bytes: sent,
            clients: vec![client],
            ..Default::default()
        }
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let (first, second) = (view(100, 0), view(300, 4 << 20));
        let plain = text(&first, None).unwrap();
        assert!(plain.contains("no call waits") && !plain.contains("/s"), "{plain}");
        let shown = text(&second, Some((&first, Duration::from_secs(2)))).unwrap();
        assert!(shown.contains("now 100/s, 0 B/s, 2 MiB/s"), "{shown}");
        let line = shown.lines().last().unwrap();
        assert!(
            line.starts_with("a ") && line.contains(" 100 ") && line.contains("2 MiB"),
            "{line}"
        );
        assert!(line.contains("  direct"), "{line}");
    }

    #[test]
    fn what_needs_attention_is_shown() {
        let mut view = view(0, 0);
        view.expected = 3;
        view.invalidations =
            Invalidations { pending: 2, oldest_ms: Some(1500), ..Default::default() };
        let shown = text(&view, None).unwrap();
        assert!(shown.contains("WAITS for 3 clients"), "{shown}");
        assert!(shown.contains("2 CALLS WAIT, the first for 1.5 s"), "{shown}");
        let standing = View { role: "stands by".to_owned(), standbys: vec![7], ..View::default() };
        let shown = text(&standing, None).unwrap();
        assert!(shown.contains("process 7") && shown.contains("no process"), "{shown}");
    }
}
