//! `thalweg kv`: keys and values in named partitions of a volume.
//!
//! If the volume is served, the command goes through its server; otherwise the command opens the volume. All
//! of this works on `dyn Transact`, and does not know which of the two it is.

mod access;
mod get;
mod session;
mod text;

use std::io::{BufRead, Read};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use thalweg_env::Env;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::stale::Guarantee;
use thalweg_store::tree::{
    Batch, Iter, Kind, NewPartition, Partition, State, Store, TreeError, catalogue,
};
use thalweg_store::txn::{Transact, TxnError};

use self::access::Access;
use self::get::{Get, get};
use self::text::{after_prefix, bytes, pair, plain, text};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::size::Size;
use crate::target::JournalDev;

/// How many keys of an import are put in one transaction, at most.
const BATCH: usize = 32;
/// How many blocks of values of an import are put in one transaction, at most, not counting the last value.
const BATCH_BLOCKS: usize = 64;

/// Keep keys and values in named partitions of a volume
///
/// Creating the first partition turns a volume into one with partitions; the volume must be empty. In JSON,
/// keys and values are strings, or {"hex": "…"} where they are not UTF-8.
#[derive(Debug, Args)]
pub(crate) struct Kv {
    /// The volume's folder, or the device of one that is updated in place, or thalweg://HOST:PORT/NAME; of a volume with
    /// replicas several, with commas between them: writes go to the primary, and reads with --read to the cheapest
    volume: String,
    #[command(flatten)]
    journal: JournalDev,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    List(List),
    Drop(Drop),
    Put(Put),
    Get(Get),
    /// Delete a key
    Delete(OnKey),
    Scan(Scan),
    Check(Check),
    Import(Import),
    Export(Export),
}

impl Command {
    /// Whether it changes nothing.
    fn only_reads(&self) -> bool {
        match self {
            Command::List(_)
            | Command::Get(_)
            | Command::Scan(_)
            | Command::Check(_)
            | Command::Export(_) => true,
            Command::Create(_)
            | Command::Drop(_)
            | Command::Put(_)
            | Command::Delete(_)
            | Command::Import(_) => false,
        }
    }
}

/// The kinds of partitions.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindArg {
    /// Ordered keys
    Btree,
    /// Keys without order; reads and writes a little less for each
    Hash,
    /// Raw blocks for programs with structures of their own
    Raw,
}

impl From<KindArg> for Kind {
    fn from(kind: KindArg) -> Kind {
        match kind {
            KindArg::Btree => Kind::Btree,
            KindArg::Hash => Kind::Hash,
            KindArg::Raw => Kind::Raw,
        }
    }
}

/// Make a partition
#[derive(Debug, Args)]
struct Create {
    /// Its name
    name: String,
    /// Its kind
    #[arg(long, value_enum, default_value_t = KindArg::Btree)]
    kind: KindArg,
    /// Its size, whole blocks of 4 KiB [default: the largest gap]
    #[arg(long)]
    size: Option<Size>,
    /// Its first block [default: the first gap with room]
    #[arg(long, value_name = "BLOCK")]
    first: Option<u64>,
    /// Print the partition as a JSON object
    #[arg(long)]
    json: bool,
}

/// List the partitions
#[derive(Debug, Args)]
struct List {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Drop a partition and everything in it
#[derive(Debug, Args)]
struct Drop {
    /// Its name
    name: String,
    /// Confirm that everything in it is to be lost
    #[arg(long)]
    yes: bool,
}

/// Set the value of a key
#[derive(Debug, Args)]
struct Put {
    /// The partition
    name: String,
    /// The key
    key: String,
    /// The value [default: read from standard input]
    value: Option<String>,
    /// Key and value are written in hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// The file of a session, which remembers what was written
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
}

/// A key of a store
#[derive(Debug, Args)]
struct OnKey {
    /// The partition
    name: String,
    /// The key
    key: String,
    /// The key is written in hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Show keys and values, in the order of keys if the store has one
#[derive(Debug, Args)]
struct Scan {
    /// The partition
    name: String,
    /// The first key
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// The key before which the scan ends
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
    /// Only keys that begin with this
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// In reverse order
    #[arg(long)]
    reverse: bool,
    /// At most this many
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// Only keys, without values
    #[arg(long)]
    keys: bool,
    /// Keys are given in hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Print a JSON object in each line
    #[arg(long)]
    json: bool,
}

/// Check all keys and values of a store
#[derive(Debug, Args)]
struct Check {
    /// The partition [default: all of them]
    name: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Import the output of an export: a JSON object on each line
#[derive(Debug, Args)]
struct Import {
    /// The partition
    name: String,
    /// The file [default: standard input]
    file: Option<PathBuf>,
    /// Print the count as a JSON object
    #[arg(long)]
    json: bool,
}

/// Print every key with its value, as of one snapshot: a JSON object on each line
#[derive(Debug, Args)]
struct Export {
    /// The partition
    name: String,
}

pub(crate) async fn run(env: &Env, args: Kv) -> Outcome<()> {
    let journal = args.journal.journal_dev.as_deref();
    let access = Access::open(env, &args.volume, journal, args.command.only_reads()).await?;
    let done = match &args.command {
        Command::Drop(drop) => access.refuse_mounted(&drop.name).await,
        _ => Ok(()),
    };
    let done = match done {
        Ok(()) => execute(env, &access.volume, args.command).await,
        refused => refused,
    };
    let closed = access.close().await;
    done.and(closed)
}

async fn execute(env: &Env, volume: &Arc<dyn Transact>, command: Command) -> Outcome<()> {
    let look = async |name: &str| Store::open(env, volume.clone(), name).await;
    // Writes to a filesystem's own tree would destroy its files.
    let open = async |name: &str| {
        catalogue::refuse_filesystem(&**volume, name).await?;
        look(name).await
    };
    match command {
        Command::Create(args) => create(env, &**volume, args).await,
        Command::List(args) => list(&**volume, &args).await,
        Command::Drop(args) => drop_partition(env, &**volume, &args).await,
        Command::Put(args) => put(&open(&args.name).await?, args).await,
        Command::Get(args) => get(&look(&args.key.name).await?, &args).await,
        Command::Delete(args) => delete(&open(&args.name).await?, &args).await,
        Command::Scan(args) => scan(&look(&args.name).await?, &args).await,
        Command::Check(args) => check(env, volume, &args).await,
        Command::Import(args) => import(&open(&args.name).await?, &args).await,
        Command::Export(args) => {
            let iter = look(&args.name).await?.iter().await?;
            show(iter, u64::MAX, &|key, value| {
                json!({"key": text(key), "value": text(value)}).to_string()
            })
            .await
        }
    }
}

async fn create(env: &Env, volume: &dyn Transact, args: Create) -> Outcome<()> {
    let block = BLOCK_SIZE as u64;
    if let Some(Size(size)) = args.size.filter(|size| !size.0.is_multiple_of(block) || size.0 == 0)
    {
        return Err(Failure::new(format!("{size} bytes are not a multiple of a block"))
            .help(format!("give a multiple of {block} bytes, for example 64M")));
    }
    let new = NewPartition {
        name: args.name,
        kind: args.kind.into(),
        first: args.first,
        blocks: args.size.map(|size| size.0 / block),
    };
    let made = catalogue::create(env, volume, &new).await?;
    if args.json {
        println!("{}", serde_json::to_string(&made)?);
    }
    Ok(())
}

async fn list(volume: &dyn Transact, args: &List) -> Outcome<()> {
    let listed = catalogue::list(volume).await?;
    if args.json {
        println!("{}", serde_json::to_string(&listed)?);
        return Ok(());
    }
    for partition in listed {
        let size = Size(partition.size().saturating_mul(BLOCK_SIZE as u64));
        let firsts: Vec<String> = partition.ranges().map(|run| run.start.to_string()).collect();
        let Partition { name, kind, state, .. } = partition;
        let state = if state == State::Unfinished { "\tunfinished" } else { "" };
        println!("{name}\t{kind}\t{size}\tfrom block {}{state}", firsts.join(", "));
    }
    Ok(())
}

async fn drop_partition(env: &Env, volume: &dyn Transact, args: &Drop) -> Outcome<()> {
    if !args.yes {
        return Err(Failure::new(format!("this drops {} and everything in it", args.name))
            .help("to confirm, add --yes"));
    }
    Ok(catalogue::remove(env, volume, &args.name).await?)
}

async fn put(store: &Store, args: Put) -> Outcome<()> {
    let key = bytes(&args.key, args.hex)?;
    let value = match args.value {
        Some(value) => bytes(&value, args.hex)?,
        None => {
            let mut value = Vec::new();
            let most = thalweg_store::tree::MAX_VALUE as u64;
            std::io::stdin().take(most + 1).read_to_end(&mut value)?;
            value
        }
    };
    let Some(file) = &args.session else { return Ok(store.put(&key, value).await?) };
    let needs =
        Guarantee { monotonic_writes: true, writes_follow_reads: true, ..Guarantee::EVENTUAL };
    let volume = store.volume();
    let mut session = session::load(file, needs)?;
    store.put_for(&mut session, &key, value).await?;
    session::save(file, &**volume, &session).await
}

fn no_key(key: &str) -> Failure {
    Failure::new(format!("there is no key {key}"))
}

async fn delete(store: &Store, args: &OnKey) -> Outcome<()> {
    let was_there = store.delete(&bytes(&args.key, args.hex)?).await?;
    if args.json {
        println!("{}", json!({"deleted": was_there}));
        return Ok(());
    }
    if was_there { Ok(()) } else { Err(no_key(&args.key)) }
}

async fn scan(store: &Store, args: &Scan) -> Outcome<()> {
    let key = |key: &Option<String>| key.as_ref().map(|key| bytes(key, args.hex)).transpose();
    let (mut from, mut to) = (key(&args.from)?, key(&args.to)?);
    if let Some(prefix) = key(&args.prefix)? {
        to = after_prefix(&prefix);
        from = Some(prefix);
    }
    let bound = |key: Option<Vec<u8>>, bound: fn(Vec<u8>) -> std::ops::Bound<Vec<u8>>| {
        key.map_or(std::ops::Bound::Unbounded, bound)
    };
    let mut iter = match (&from, &to) {
        (None, None) => store.iter().await?,
        _ => {
            let from = bound(from, std::ops::Bound::Included);
            store.range((from, bound(to, std::ops::Bound::Excluded))).await?
        }
    };
    if args.reverse {
        iter = iter.backward()?;
    }
    show(iter, args.limit.unwrap_or(u64::MAX), &|key, value| match (args.json, args.keys) {
        (true, true) => json!({"key": text(key)}).to_string(),
        (true, false) => json!({"key": text(key), "value": text(value)}).to_string(),
        (false, true) => plain(key),
        (false, false) => format!("{}\t{}", plain(key), plain(value)),
    })
    .await
}

/// Prints a line for each pair, until the reader closes the pipe.
async fn show(
    mut iter: Iter,
    limit: u64,
    line: &(dyn Fn(&[u8], &[u8]) -> String + Sync),
) -> Outcome<()> {
    let mut shown = 0;
    while shown < limit {
        let Some((key, value)) = iter.next().await? else { break };
        println!("{}", line(&key, &value));
        if output::is_closed() {
            break;
        }
        shown += 1;
    }
    Ok(())
}

async fn check(env: &Env, volume: &Arc<dyn Transact>, args: &Check) -> Outcome<()> {
    let names: Vec<String> = match &args.name {
        Some(name) => vec![name.clone()],
        None => {
            let listed = catalogue::list(&**volume).await?;
            let stores = listed.into_iter().filter(|partition| partition.kind != Kind::Raw);
            stores.map(|partition| partition.name).collect()
        }
    };
    let mut reports = serde_json::Map::new();
    for name in names {
        let report = match Store::open(env, volume.clone(), &name).await {
            Ok(store) => store.check().await,
            Err(error) => Err(error),
        };
        let report = report.map_err(|error| Failure::from(error).while_doing(&name))?;
        if !args.json {
            println!("{name}: {} keys, {}", report.keys, Size(report.bytes));
        }
        reports.insert(name, serde_json::to_value(report)?);
    }
    if args.json {
        println!("{}", Value::Object(reports));
    }
    Ok(())
}

async fn import(store: &Store, args: &Import) -> Outcome<()> {
    let input: Box<dyn BufRead + Send> = match &args.file {
        Some(file) => {
            let opened = std::fs::File::open(file)
                .map_err(|error| Failure::of(&error).while_doing(file.display()))?;
            Box::new(std::io::BufReader::new(opened))
        }
        None => Box::new(std::io::BufReader::new(std::io::stdin())),
    };
    let (mut pairs, mut blocks, mut count) = (Vec::new(), 0, 0u64);
    for (number, line) in input.lines().enumerate() {
        let line = line?;
        let pair = pair(&line)
            .map_err(|failure| failure.while_doing(format!("line {} of the import", number + 1)))?;
        blocks += pair.1.len() / BLOCK_SIZE;
        pairs.push(pair);
        count += 1;
        if pairs.len() >= BATCH || blocks >= BATCH_BLOCKS {
            put_all(store, std::mem::take(&mut pairs)).await?;
            blocks = 0;
        }
    }
    put_all(store, pairs).await?;
    match args.json {
        true => println!("{}", json!({"imported": count})),
        false => eprintln!("{count} keys"),
    }
    Ok(())
}

/// Puts pairs in one transaction, or, if they are too many for one, one after the other.
async fn put_all(store: &Store, pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Outcome<()> {
    let mut batch = Batch::new();
    for (key, value) in &pairs {
        batch.put(key.clone(), value.clone());
    }
    match store.write(&batch).await {
        Err(TreeError::Txn(TxnError::TooLarge(_))) => {
            for (key, value) in pairs {
                store.put(&key, value).await?;
            }
            Ok(())
        }
        written => Ok(written?),
    }
}
