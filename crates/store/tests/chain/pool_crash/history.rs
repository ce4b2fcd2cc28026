//! A volume's history on recorded files, and its requirements at each point.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::seq::IteratorRandom;
use thalweg_env::{Env, Rng};
use thalweg_sim::media::SimMedia;
use thalweg_sim::model::BlockModel;
use thalweg_sim::recording::Recorder;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, Version, Write};
use thalweg_store::chain::Cleaning;
use thalweg_store::pool::{
    CacheSpec, DeviceSpec, ExtendRequest, LinkSpec, Media, MemberState, NewVolume, OpenOptions,
    Pool, PoolError, ShrinkRequest, create_on, destroy_on,
};

use crate::support::{SEGMENT, content, options};

const MIB: u64 = 1 << 20;
/// Bytes of a device for a link: seven segments, and the label.
pub(crate) const LINK: u64 = MIB + 7 * (SEGMENT as u64) * BLOCK_SIZE as u64;
/// Bytes of the device that map, caches and others share.
const SHARED: u64 = 24 * MIB;
/// Blocks of the volume, and those that are written.
pub(crate) const BLOCKS: u64 = 300;
/// Devices that may become links.
const SPARES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const MAPS: [&str; 3] = ["m", "n", "o"];

pub(crate) fn folder() -> PathBuf {
    PathBuf::from("/v")
}

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new("/v").join(name)
}

/// The path of a device while it is absent.
fn away(device: &Path) -> PathBuf {
    Path::new("/away").join(device.file_name().unwrap())
}

/// The kinds of a volume's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// Devices by themselves.
    Plain,
    /// The first one a mirror.
    Mirror,
}

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) links: Parts,
    /// 0 for a map on the first link.
    pub(crate) map_sides: usize,
    pub(crate) cache: bool,
    pub(crate) sector: u32,
}

impl Layout {
    fn first_links(&self) -> Vec<LinkSpec> {
        let device = |name| DeviceSpec::with_size(path(name), self.link_bytes(name));
        match self.links {
            Parts::Plain => vec![LinkSpec::plain(device("a")), LinkSpec::plain(device("b"))],
            Parts::Mirror => {
                vec![LinkSpec::mirror(vec![device("a"), device("b")]), LinkSpec::plain(device("c"))]
            }
        }
    }

    /// Bytes of a device for a link: the first has the map area too.
    pub(crate) fn link_bytes(&self, _name: &str) -> u64 {
        if self.map_sides == 0 { LINK + 4 * MIB } else { LINK }
    }

    pub(crate) fn new_volume(&self) -> NewVolume {
        let size = BLOCKS * BLOCK_SIZE as u64;
        let mut new = NewVolume::new("v", size, self.first_links());
        let shared = |name: &str| DeviceSpec::with_size(path(name), SHARED);
        new.map = MAPS[..self.map_sides].iter().map(|name| shared(name)).collect();
        new.cache = self.cache.then(|| CacheSpec { device: shared("ssd"), bytes: Some(2 * MIB) });
        new.segment_blocks = Some(SEGMENT);
        new.growth = 3.0;
        new.cleaning = Cleaning::CompactInBody;
        new
    }
}

/// One operation on the volume as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Create,
    Open,
    Write(u64),
    Extend(PathBuf),
    Resize(u64),
    Shrink(PathBuf),
    Replace(PathBuf, PathBuf),
    Rebuild,
    /// Closed, one device removed, and opened again.
    Lose(PathBuf),
    /// Closed, the device returned, and opened again.
    Return(PathBuf),
    Destroy,
}

/// Requirements once the operations up to some number are acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) durable: Version,
    pub(crate) newest: Version,
}

pub(crate) struct History {
    pub(crate) recorder: Recorder,
    pub(crate) layout: Layout,
    pub(crate) ops: Vec<Op>,
    pub(crate) promises: Vec<Promise>,
    pub(crate) model: BlockModel,
    /// Events at which an operation on the volume as a whole began and ended.
    pub(crate) spans: Vec<(usize, usize)>,
}

pub(crate) fn quiet(_: u64, _: u64) {}

pub(crate) async fn open(env: &Env, media: &Arc<SimMedia>) -> Result<Pool, PoolError> {
    let options = OpenOptions { chain: options(), ..OpenOptions::default() };
    Pool::open_on(env, media.clone(), &folder(), &options).await
}

/// Does one operation, or the rest of it: an earlier attempt may have been interrupted, more than once.
pub(crate) async fn perform(
    env: &Env,
    media: &Arc<SimMedia>,
    pool: &mut Option<Pool>,
    layout: &Layout,
    op: &Op,
) -> Result<(), PoolError> {
    let is_member =
        |pool: &Pool, path: &Path| pool.status().members.iter().any(|member| member.path == path);
    match (op, pool.as_ref()) {
        (Op::Create, _) => {
            create_on(env, &**media, &folder(), &layout.new_volume(), &quiet).await?
        }
        (Op::Open, _) => {}
        (Op::Extend(path), Some(pool)) if !is_member(pool, path) => {
            let device = DeviceSpec::with_size(path, layout.link_bytes(""));
            let link = Some(LinkSpec::plain(device));
            pool.extend(&ExtendRequest { link, ..ExtendRequest::default() }).await?;
        }
        (Op::Resize(blocks), Some(pool)) => {
            let size = blocks * BLOCK_SIZE as u64;
            if size >= pool.volume().size() {
                let request = ExtendRequest { size: Some(size), ..ExtendRequest::default() };
                pool.extend(&request).await?;
            } else {
                pool.shrink(&ShrinkRequest::Size(size), &quiet).await?;
            }
        }
        (Op::Shrink(path), Some(pool)) if is_member(pool, path) => {
            pool.shrink(&ShrinkRequest::Link(path.clone()), &quiet).await?;
        }
        (Op::Replace(old, new), Some(pool)) if is_member(pool, old) => {
            let device = DeviceSpec::with_size(new, layout.link_bytes(""));
            pool.replace(old, &device, false, &quiet).await?;
        }
        // It is in its place already, and may not be filled yet.
        (Op::Replace(..) | Op::Rebuild, Some(pool)) => pool.rebuild(None, &quiet).await?,
        (Op::Lose(device), _) | (Op::Return(device), _) => {
            if let Some(pool) = pool.take() {
                pool.close().await?;
            }
            let (from, to) = match op {
                Op::Lose(_) => (device.clone(), away(device)),
                _ => (away(device), device.clone()),
            };
            let io = |error| PoolError::Invalid(format!("{error}"));
            if media.find(&from).await.map_err(io)?.is_some() {
                media.rename(&from, &to).await.map_err(io)?;
                media.sync_folder(&folder()).await.map_err(io)?;
            }
        }
        (Op::Destroy, _) => {
            drop(pool.take());
            match destroy_on(env, &**media, &folder()).await {
                Ok(()) | Err(PoolError::NoVolume { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        _ => {}
    }
    if pool.is_none() && *op != Op::Destroy {
        *pool = Some(open(env, media).await?);
    }
    Ok(())
}

/// Writes `count` blocks and makes them durable.
pub(crate) async fn write(pool: &Pool, model: &mut BlockModel, count: u64, rng: &mut Rng) {
    let chain = pool.chain();
    for _ in 0..count {
        let lbas = (0..rng.random_range(1..8)).map(|_| rng.random_range(0..BLOCKS));
        let stamp = model.now().0;
        let writes: Vec<Write> =
            lbas.map(|lba| Write::block(Lba(lba), content(lba, stamp))).collect();
        let version = chain.apply(writes.clone()).await.unwrap();
        assert_eq!(version, model.apply(&writes));
    }
    chain.sync(chain.now()).await.unwrap();
}

struct Writer {
    env: Env,
    media: Arc<SimMedia>,
    pool: Option<Pool>,
    history: History,
    rng: Rng,
}

/// Makes a history of `count` operations.
pub(crate) async fn record(env: &Env, layout: &Layout, count: usize) -> History {
    let recorder = Recorder::with_latency(env, Duration::from_micros(200));
    let media = Arc::new(SimMedia::recorded(&recorder, layout.sector));
    let history = History {
        recorder,
        layout: layout.clone(),
        ops: Vec::new(),
        promises: Vec::new(),
        model: BlockModel::new(2 * BLOCKS),
        spans: Vec::new(),
    };
    let mut writer = Writer { env: env.clone(), media, pool: None, history, rng: env.rng() };
    writer.step(Op::Create).await;
    for _ in 0..count {
        let writes = Op::Write(writer.rng.random_range(1..12));
        writer.step(writes).await;
        let op = writer.choose();
        writer.step(op).await;
    }
    writer.step(Op::Destroy).await;
    writer.history
}

impl Writer {
    async fn step(&mut self, op: Op) {
        let History { recorder, layout, .. } = &self.history;
        let begun = recorder.position();
        if let Op::Write(count) = op {
            let pool = self.pool.as_ref().unwrap();
            write(pool, &mut self.history.model, count, &mut self.rng).await;
        } else {
            let done = perform(&self.env, &self.media, &mut self.pool, layout, &op).await;
            done.unwrap_or_else(|error| panic!("{op:?}: {error}"));
            self.history.spans.push((begun, self.history.recorder.position()));
        }
        let newest = self.history.model.now();
        let durable = match (&op, self.history.promises.last()) {
            (Op::Write(_), _) | (_, None) => newest,
            (_, Some(last)) => last.durable,
        };
        self.history.promises.push(Promise { durable, newest });
        self.history.ops.push(op);
        self.history.recorder.mark(self.history.ops.len() as u64 - 1);
    }

    /// Chooses an operation that is possible now.
    fn choose(&mut self) -> Op {
        let pool = self.pool.as_ref().unwrap();
        let status = pool.status();
        let mut ops =
            vec![Op::Open, Op::Resize([BLOCKS, BLOCKS + 60][self.rng.random_range(0..2)])];
        let used: BTreeSet<_> = status.members.iter().map(|member| member.path.clone()).collect();
        let spare =
            |names: &[&str]| names.iter().map(|name| path(name)).find(|p| !used.contains(p));
        let missing = status.members.iter().find(|member| member.state == MemberState::Missing);
        let stale = status.members.iter().any(|member| member.state == MemberState::Stale);
        let links = status.chain.links.len();
        let map_group = status.members[0].group;
        for member in &status.members {
            let role = member.role.name();
            let path = &member.path;
            let group = |m: &&thalweg_store::pool::MemberStatus| m.group == member.group;
            let sides = status.members.iter().filter(group).count();
            let others = status.members.iter().filter(group);
            let others =
                others.filter(|m| m.path != *path && m.state == MemberState::Online).count();
            let keeps_map = self.history.layout.map_sides == 0 && member.group == map_group;
            if role == "link" && sides == 1 && !keeps_map {
                if links > 2 {
                    ops.push(Op::Shrink(path.clone()));
                }
                if let Some(new) = spare(&SPARES) {
                    ops.push(Op::Replace(path.clone(), new));
                }
            }
            if sides > 1 && others > 0 {
                let spare = spare(if role == "map" { &MAPS } else { &SPARES });
                if let Some(new) = spare.filter(|_| missing.is_none_or(|m| m.path == *path)) {
                    ops.push(Op::Replace(path.clone(), new));
                }
                if missing.is_none() && !stale {
                    ops.extend([Op::Lose(path.clone()), Op::Lose(path.clone())]);
                }
            }
        }
        if let (Some(new), true) = (spare(&SPARES), links < 4) {
            ops.push(Op::Extend(new));
        }
        if let Some(missing) = missing {
            ops.extend(vec![Op::Return(missing.path.clone()); 4]);
        }
        if stale {
            ops.extend([Op::Rebuild, Op::Rebuild, Op::Rebuild, Op::Rebuild]);
        }
        let op = ops.into_iter().choose(&mut self.rng).unwrap();
        if op == Op::Open {
            // Not closed: as after the death of its server.
            self.pool = None;
        }
        op
    }
}
