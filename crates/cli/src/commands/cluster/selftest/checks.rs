//! The checks of names, attributes and contents, a round at a time.

use super::agent::{Op, Reply};
use super::sides::{Side, Times, get, is_text, make, put};
use super::{Pair, full, locks};
use crate::failure::{Failure, Outcome};

/// Lines that each side appends in a round.
const LINES: usize = 50;

/// What is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Check {
    Create,
    Remove,
    Rename,
    RenameOver,
    Directory,
    Attributes,
    Contents,
    Sizes,
    Append,
    Mapped,
    MappedOpen,
    Unlinked,
    Flock,
    Posix,
    DeadHolder,
    Full,
    RoomBack,
}

impl Check {
    pub(super) const ALL: [Check; 17] = [
        Check::Create,
        Check::Remove,
        Check::Rename,
        Check::RenameOver,
        Check::Directory,
        Check::Attributes,
        Check::Contents,
        Check::Sizes,
        Check::Append,
        Check::Mapped,
        Check::MappedOpen,
        Check::Unlinked,
        Check::Flock,
        Check::Posix,
        Check::DeadHolder,
        Check::Full,
        Check::RoomBack,
    ];

    /// Whether it is skipped where a quota cannot be set.
    pub(super) fn needs_quota(self) -> bool {
        matches!(self, Check::Full | Check::RoomBack)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Check::Create => "create",
            Check::Remove => "remove",
            Check::Rename => "rename",
            Check::RenameOver => "rename over a file",
            Check::Directory => "directory",
            Check::Attributes => "attributes",
            Check::Contents => "contents",
            Check::Sizes => "append and truncate",
            Check::Append => "O_APPEND by both",
            Check::Mapped => "mmap after msync",
            Check::MappedOpen => "mmap without fstat",
            Check::Unlinked => "unlink of an open file",
            Check::Flock => "flock",
            Check::Posix => "fcntl locks",
            Check::DeadHolder => "locks of a dead holder",
            Check::Full => "a full disk",
            Check::RoomBack => "room of removed files",
        }
    }

    pub(super) async fn run(self, pair: &mut Pair, round: u32, times: &mut Times) -> Outcome<()> {
        let path = pair.path(&format!("{}-{round}", self.name().replace(' ', "-")));
        let env = pair.env.clone();
        let (one, two) = pair.turn(round);
        match self {
            Check::Create => create(one, two, path, times).await,
            Check::Remove => remove(one, two, path, times).await,
            Check::Rename => rename(one, two, path, times).await,
            Check::RenameOver => rename_over(one, two, path, times).await,
            Check::Directory => directory(one, two, path, times).await,
            Check::Attributes => attributes(one, two, path, times).await,
            Check::Contents => contents(one, two, path, times).await,
            Check::Sizes => sizes(one, two, path, times).await,
            Check::Append => append(one, two, path, times).await,
            Check::Mapped => mapped(one, two, path, times).await,
            Check::MappedOpen => mapped_open(one, two, path, times).await,
            Check::Unlinked => unlinked(one, two, path, times).await,
            Check::Flock => locks::flock(&env, one, two, path, times).await,
            Check::Posix => locks::posix(&env, one, two, path, times).await,
            Check::DeadHolder => locks::dead_holder(&env, one, two, path, times).await,
            Check::Full => full::full(one, two, path, times).await,
            Check::RoomBack => full::returned(one, two, path, times).await,
        }
    }
}

fn stat(path: &str) -> Op {
    Op::Stat { path: path.to_owned() }
}

fn unlink(path: &str) -> Op {
    Op::Unlink { path: path.to_owned() }
}

fn is_present(reply: &Reply) -> bool {
    matches!(reply, Reply::Stat { .. })
}

fn is_absent(reply: &Reply) -> bool {
    *reply == Reply::Absent
}

async fn create(one: &mut Side, two: &mut Side, path: String, times: &mut Times) -> Outcome<()> {
    // It may cache that there is no such name.
    two.expect(stat(&path), &Reply::Absent, "a new name is there already").await?;
    one.order(put(&path, "x")).await?;
    two.sees(times, stat(&path), "a new file", is_present).await?;
    one.order(unlink(&path)).await
}

async fn remove(one: &mut Side, two: &mut Side, path: String, times: &mut Times) -> Outcome<()> {
    make(one, two, &path, "x").await?;
    one.order(unlink(&path)).await?;
    two.sees(times, stat(&path), "the removal of a file", is_absent).await
}

async fn rename(one: &mut Side, two: &mut Side, path: String, times: &mut Times) -> Outcome<()> {
    let to = format!("{path}-to");
    make(one, two, &path, "x").await?;
    two.expect(stat(&to), &Reply::Absent, "a new name is there already").await?;
    one.order(Op::Rename { from: path.clone(), to: to.clone() }).await?;
    two.sees(times, stat(&to), "the new name of a file", is_present).await?;
    two.sees(times, stat(&path), "that the old name of a file is gone", is_absent).await?;
    one.order(unlink(&to)).await
}

async fn rename_over(
    one: &mut Side,
    two: &mut Side,
    path: String,
    times: &mut Times,
) -> Outcome<()> {
    let from = format!("{path}-new");
    make(one, two, &path, "old").await?;
    make(one, two, &from, "new").await?;
    two.order(Op::Open { file: 1, path: path.clone() }).await?;
    one.order(Op::Rename { from, to: path.clone() }).await?;
    two.sees(times, get(&path), "the file that has replaced another one", is_text("new")).await?;
    let replaced = "the content of an open file that was replaced";
    two.sees(times, Op::GetOpen { file: 1 }, replaced, is_text("old")).await?;
    two.order(Op::Close { file: 1 }).await?;
    one.order(unlink(&path)).await
}

async fn directory(one: &mut Side, two: &mut Side, path: String, times: &mut Times) -> Outcome<()> {
    let file = format!("{path}/f");
    let list = || Op::List { path: path.clone() };
    let are = |names: &[&str]| {
        let wanted = Reply::Names(names.iter().copied().map(str::to_owned).collect());
        move |reply: &Reply| *reply == wanted
    };
    one.order(Op::MakeDirectory { path: path.clone() }).await?;
    two.sees(times, list(), "a new directory", are(&[])).await?;
    one.order(put(&file, "x")).await?;
    two.sees(times, list(), "a new name in a directory", are(&["f"])).await?;
    one.order(unlink(&file)).await?;
    two.sees(times, list(), "the removal of a name in a directory", are(&[])).await?;
    one.order(Op::RemoveDirectory { path: path.clone() }).await?;
    two.sees(times, list(), "the removal of a directory", is_absent).await
}

async fn attributes(
    one: &mut Side,
    two: &mut Side,
    path: String,
    times: &mut Times,
) -> Outcome<()> {
    make(one, two, &path, "x").await?;
    for wanted in [0o600, 0o640] {
        one.order(Op::Chmod { path: path.clone(), mode: wanted }).await?;
        let is_it = |reply: &Reply| matches!(reply, Reply::Stat { mode, .. } if *mode == wanted);
        two.sees(times, stat(&path), "another mode", is_it).await?;
    }
    one.order(unlink(&path)).await
}

async fn contents(one: &mut Side, two: &mut Side, path: String, times: &mut Times) -> Outcome<()> {
    // Several pages, and the end in the middle of one.
    let mut text = "a".repeat(10_000);
    make(one, two, &path, &text).await?;
    for offset in [0, 4095, 9_990] {
        let at = offset as u64;
        one.order(Op::WriteAt { path: path.clone(), offset: at, text: "bcd".to_owned() }).await?;
        text.replace_range(offset..offset + 3, "bcd");
        two.sees(times, get(&path), "an overwritten part of a file", is_text(&text)).await?;
    }
    one.order(put(&path, "shorter")).await?;
    two.sees(times, get(&path), "the new content of a file", is_text("shorter")).await?;
    one.order(unlink(&path)).await
}

async fn sizes(one: &mut Side, two: &mut Side, path: String, times: &mut Times) -> Outcome<()> {
    let is_long = |wanted: u64| move |reply: &Reply| matches!(reply, Reply::Stat { size, .. } if *size == wanted);
    make(one, two, &path, "one").await?;
    one.order(Op::Append { path: path.clone(), lines: vec!["two".to_owned()] }).await?;
    two.sees(times, stat(&path), "the size after an append", is_long(6)).await?;
    two.sees(times, get(&path), "an append", is_text("onetwo")).await?;
    one.order(Op::Truncate { path: path.clone(), len: 4 }).await?;
    two.sees(times, stat(&path), "the size after a truncation", is_long(4)).await?;
    two.sees(times, get(&path), "a truncation", is_text("onet")).await?;
    one.order(Op::Truncate { path: path.clone(), len: 6 }).await?;
    two.sees(times, get(&path), "an extension", is_text("onet\0\0")).await?;
    one.order(unlink(&path)).await
}

async fn append(one: &mut Side, two: &mut Side, path: String, times: &mut Times) -> Outcome<()> {
    make(one, two, &path, "").await?;
    let lines = |by: &str| (0..LINES).map(|line| format!("{by} {line}\n")).collect::<Vec<_>>();
    one.send(&Op::Append { path: path.clone(), lines: lines("one") }).await?;
    two.send(&Op::Append { path: path.clone(), lines: lines("two") }).await?;
    for side in [&mut *one, &mut *two] {
        let reply = side.receive().await?;
        if reply != Reply::Done {
            let what = format!("an append fails on {}", side.place);
            return Err(Failure::new(format!("{what}: {}", super::sides::text(&reply))));
        }
    }
    // All lines of each side, in their order.
    let by = |text: &str, by: &str| {
        let own = text.split_inclusive('\n').filter(|line| line.starts_with(by));
        own.map(str::to_owned).collect::<Vec<_>>()
    };
    let is_whole = |reply: &Reply| {
        let Reply::Text(text) = reply else { return false };
        let all = by(text, "one") == lines("one") && by(text, "two") == lines("two");
        all && text.lines().count() == 2 * LINES
    };
    let what = format!("a file with {LINES} lines that each side has appended");
    two.sees(times, get(&path), &what, is_whole).await?;
    one.sees(times, get(&path), &what, is_whole).await?;
    one.order(unlink(&path)).await
}

async fn mapped(one: &mut Side, two: &mut Side, path: String, times: &mut Times) -> Outcome<()> {
    let load = || Op::LoadMapped { path: path.clone() };
    make(one, two, &path, "before").await?;
    two.expect(load(), &Reply::Text("before".to_owned()), "a mapped file").await?;
    one.order(Op::StoreMapped { path: path.clone(), text: "behind".to_owned() }).await?;
    two.sees(times, load(), "a synced store, through a mapping", is_text("behind")).await?;
    two.sees(times, get(&path), "a synced store, by a read", is_text("behind")).await?;
    one.order(unlink(&path)).await
}

async fn mapped_open(
    one: &mut Side,
    two: &mut Side,
    path: String,
    times: &mut Times,
) -> Outcome<()> {
    // Two pages, of which the second one is added while the other side has the file open, and has it mapped.
    let (page, more) = ("a".repeat(4096), "b".repeat(4096));
    let load = |from: u64| Op::LoadOpen { file: 1, from, len: 4096 };
    make(one, two, &path, &page).await?;
    two.order(Op::Open { file: 1, path: path.clone() }).await?;
    two.order(Op::MapOpen { file: 1, len: 8192 }).await?;
    two.expect(load(0), &Reply::Text(page), "a mapped file").await?;
    one.order(Op::Append { path: path.clone(), lines: vec![more.clone()] }).await?;
    two.sees(times, load(4096), "an append, through a mapping", is_text(&more)).await?;
    let changed = "c".repeat(4096);
    one.order(Op::WriteAt { path: path.clone(), offset: 0, text: changed.clone() }).await?;
    two.sees(times, load(0), "a write, through a mapping", is_text(&changed)).await?;
    two.order(Op::Close { file: 1 }).await?;
    one.order(unlink(&path)).await
}

async fn unlinked(one: &mut Side, two: &mut Side, path: String, times: &mut Times) -> Outcome<()> {
    let read = || Op::GetOpen { file: 1 };
    make(one, two, &path, "kept").await?;
    two.order(Op::Open { file: 1, path: path.clone() }).await?;
    one.order(unlink(&path)).await?;
    two.sees(times, stat(&path), "the removal of an open file", is_absent).await?;
    two.sees(times, read(), "the content of a removed file", is_text("kept")).await?;
    two.order(Op::PutOpen { file: 1, text: "more".to_owned() }).await?;
    two.sees(times, read(), "a write to a removed file", is_text("more")).await?;
    two.order(Op::Close { file: 1 }).await
}
