//! Every image of a history is opened, compared, taken further, and its devices used by others.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::{Env, Rng};
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::media::SimMedia;
use thalweg_sim::model::BlockModel;
use thalweg_sim::recording::{Event, Recorder};
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, Version};
use thalweg_store::pool::manifest::{FILE, Manifest, Stage};
use thalweg_store::pool::{
    DeviceSpec, LinkSpec, Media, MemberState, NewVolume, Pool, PoolError, Reassembly, create_on,
    destroy_on, reassemble_on,
};

use super::history::{self, History, Layout, Op, Parts, folder, open, perform, quiet, record};
use crate::support::{SEGMENT, read_all};

/// Operations after the volume is made, before it is destroyed.
const OPS: usize = 10;

/// Counts of the checks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) images: u64,
    /// Images of an image: of its recovery, and of a repeated operation.
    pub(crate) second: u64,
    pub(crate) not_made: u64,
    pub(crate) destroyed: u64,
    pub(crate) freed: u64,
    pub(crate) alone: u64,
    pub(crate) reused: u64,
    pub(crate) repeated: u64,
    pub(crate) reassembled: u64,
}

impl Tally {
    /// Adds another run's.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.images += other.images;
        self.second += other.second;
        self.not_made += other.not_made;
        self.destroyed += other.destroyed;
        self.freed += other.freed;
        self.alone += other.alone;
        self.reused += other.reused;
        self.repeated += other.repeated;
        self.reassembled += other.reassembled;
    }

    /// Fails when the histories did not cover what they are for.
    pub(crate) fn assert_varied(&self, layout: &Layout) {
        let counts = [self.second, self.not_made, self.destroyed, self.freed, self.reused];
        assert!(counts.iter().all(|count| *count > 10) && self.repeated > 10, "{self:?}");
        assert!(self.reassembled > 10, "{self:?}");
        assert!(self.alone > 10 || layout.links == Parts::Plain, "{self:?}");
    }
}

fn policy() -> Policy {
    Policy {
        points: Points::Flushes,
        exhaustive: 2,
        prefixes: 1,
        missing: 1,
        subsets: 1,
        torn: 2,
        shuffled: 1,
    }
}

/// Explores one seed to its end.
pub(crate) fn explore(seed: u64, layout: &Layout) -> Tally {
    let history = run(seed, |env| {
        let layout = layout.clone();
        async move { Arc::new(record(&env, &layout, OPS).await) }
    });
    run(seed, |env| async move {
        let mut rng = env.rng();
        let mut checker =
            Checker { env: env.clone(), seed, history: history.clone(), tally: Tally::default() };
        let points = flushes(&history);
        for image in history.recorder.images(&mut rng, &policy().at(Points::At(points))) {
            checker.check(&image, &mut rng).await;
        }
        checker.tally
    })
}

/// Just before and after the end of each flush of an operation on the volume as a whole.
fn flushes(history: &History) -> Vec<usize> {
    let log = history.recorder.log();
    let is_flush = |at: &usize| matches!(log.events.get(*at), Some(Event::FlushEnded { .. }));
    let of_ops = history.spans.iter().flat_map(|(begun, ended)| *begun..*ended);
    of_ops.filter(is_flush).flat_map(|at| [at, at + 1]).collect()
}

struct Checker {
    env: Env,
    seed: u64,
    history: Arc<History>,
    tally: Tally,
}

/// An image's position in the history, for messages, and its requirements.
struct Case<'a> {
    place: String,
    /// The first operation that was not acknowledged, if there is one.
    cut: Option<&'a Op>,
    floor: Version,
    newest: Version,
}

impl Checker {
    fn case<'a>(&self, history: &'a History, image: &CrashImage) -> Case<'a> {
        let acknowledged = image.acknowledged().next();
        let next = acknowledged.map_or(0, |number| number as usize + 1);
        let cut = history.ops.get(next);
        let before = next.checked_sub(1).and_then(|number| history.promises.get(number));
        let after = history.promises.get(next).or(before);
        let place = format!("seed {}, {cut:?} cut short, {}", self.seed, image.describe());
        let floor = before.map_or(Version(0), |promise| promise.durable);
        let newest = after.map_or(Version(0), |promise| promise.newest);
        Case { place, cut, floor, newest }
    }

    async fn media(&self, image: &CrashImage) -> Arc<SimMedia> {
        let sector = self.history.layout.sector;
        Arc::new(SimMedia::of_image(image, sector).await.unwrap())
    }

    async fn check(&mut self, image: &CrashImage, rng: &mut Rng) {
        let history = self.history.clone();
        let case = self.case(&history, image);
        let media = self.media(image).await;
        self.tally.images += 1;
        let listed = listed(&media).await;
        let opened = open(&self.env, &media).await;
        let mut pool = match (opened, case.cut) {
            (Ok(pool), _) => Some(pool),
            (Err(error), Some(Op::Create | Op::Destroy) | None) => {
                is_unfinished(&error).unwrap_or_else(|()| panic!("{}: {error}", case.place));
                None
            }
            (Err(error), _) => panic!("{}: {error}", case.place),
        };
        if let Some(pool) = &pool {
            compare(pool, &history.model, &case).await;
            self.tally.freed += u64::from(listed != members(pool));
            self.each_side_alone(pool, image, &case).await;
            if self.tally.images % 5 == 2 {
                self.without_manifest(pool, image, &case).await;
            }
        }
        // Only some of the images, for the sake of time.
        match self.tally.images % 4 {
            0 => self.again(&media, &mut pool, &case, rng).await,
            1 => self.reuse(&media, pool, &case).await,
            _ => {}
        }
        if self.tally.images.is_multiple_of(60) {
            self.crash_again(image, &case, rng).await;
        }
    }

    /// The interrupted operation is repeated; then the volume is used as usual.
    async fn again(
        &mut self,
        media: &Arc<SimMedia>,
        pool: &mut Option<Pool>,
        case: &Case<'_>,
        rng: &mut Rng,
    ) {
        let Some(op) = case.cut else { return };
        if *op == Op::Create {
            self.create_again(media, pool, case).await;
        } else if !matches!(op, Op::Write(_)) {
            let layout = &self.history.layout;
            let done = perform(&self.env, media, pool, layout, op).await;
            done.unwrap_or_else(|error| panic!("{}: again: {error}", case.place));
            self.tally.repeated += 1;
        }
        let Some(open_pool) = pool.take() else { return };
        let version = compare(&open_pool, &self.history.model, case).await;
        let mut model = self.history.model.clone();
        model.rewind(version);
        while model.now() < open_pool.chain().now() {
            model.apply(&[]);
        }
        history::write(&open_pool, &mut model, 3, rng).await;
        drop(open_pool);
        let opened = open(&self.env, media).await;
        let pool = opened.unwrap_or_else(|error| panic!("{}: reopened: {error}", case.place));
        let now = model.now();
        let case = Case { floor: now, newest: now, place: case.place.clone(), cut: None };
        compare(&pool, &model, &case).await;
    }

    async fn create_again(
        &mut self,
        media: &Arc<SimMedia>,
        pool: &mut Option<Pool>,
        case: &Case<'_>,
    ) {
        if pool.is_some() {
            return;
        }
        self.tally.not_made += 1;
        match destroy_on(&self.env, &**media, &folder()).await {
            Ok(()) | Err(PoolError::NoVolume { .. }) => {}
            Err(error) => panic!("{}: destroyed: {error}", case.place),
        }
        let again = perform(&self.env, media, pool, &self.history.layout, &Op::Create).await;
        again.unwrap_or_else(|error| panic!("{}: made again: {error}", case.place));
    }

    /// Each side of a mirror that is in sync has everything, alone.
    async fn each_side_alone(&mut self, pool: &Pool, image: &CrashImage, case: &Case<'_>) {
        let members = pool.status().members;
        for member in members.iter().filter(|member| member.state == MemberState::Online) {
            let others = members.iter().filter(|other| {
                (other.role, other.group) == (member.role, member.group)
                    && other.path != member.path
            });
            let others: Vec<PathBuf> = others.map(|other| other.path.clone()).collect();
            if others.is_empty() || !self.tally.images.is_multiple_of(6) {
                continue;
            }
            self.tally.alone += 1;
            let media = self.media(image).await;
            for other in others {
                media.remove(&other).await.unwrap();
            }
            let path = member.path.display();
            let place = format!("{path} alone, {}", case.place);
            let case = Case { place, ..*case };
            let opened = open(&self.env, &media).await;
            let pool = opened.unwrap_or_else(|error| panic!("{}: {error}", case.place));
            compare(&pool, &self.history.model, &case).await;
        }
    }

    /// The manifest is lost in the crash, and made again from the labels of the members.
    async fn without_manifest(&mut self, pool: &Pool, image: &CrashImage, case: &Case<'_>) {
        let media = self.media(image).await;
        media.remove(&folder().join(FILE)).await.unwrap();
        let members = pool.status().members;
        let (present, absent): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|it| it.state != MemberState::Missing);
        let mut devices: Vec<PathBuf> = present.into_iter().map(|it| it.path).collect();
        devices.sort();
        devices.dedup();
        let how = Reassembly { devices, degraded: !absent.is_empty() };
        let place = format!("without its manifest, {}", case.place);
        let made = reassemble_on(&self.env, &*media, &folder(), &how).await;
        made.unwrap_or_else(|error| panic!("{place}: {error}"));
        let opened = open(&self.env, &media).await;
        let pool = opened.unwrap_or_else(|error| panic!("{place}: {error}"));
        compare(&pool, &self.history.model, &Case { place, ..*case }).await;
        self.tally.reassembled += 1;
    }

    /// Another volume takes every device that this one does not use, without force.
    async fn reuse(&mut self, media: &Arc<SimMedia>, pool: Option<Pool>, case: &Case<'_>) {
        if pool.is_none() {
            match destroy_on(&self.env, &**media, &folder()).await {
                Ok(()) => self.tally.destroyed += 1,
                Err(PoolError::NoVolume { .. }) => {}
                Err(error) => panic!("{}: destroyed: {error}", case.place),
            }
        }
        let used = listed(media).await;
        drop(pool);
        let free = media.device_paths().await.into_iter();
        let free = free.filter(|path| !used.contains(path) && path.starts_with(folder()));
        for (number, path) in free.enumerate() {
            let other = PathBuf::from(format!("/other{number}"));
            let link = LinkSpec::plain(DeviceSpec::new(&path));
            let mut new = NewVolume::new("other", 1 << 18, vec![link]);
            new.map = vec![DeviceSpec::with_size(other.join("map"), 8 << 20)];
            (new.segment_blocks, new.growth) = (Some(SEGMENT), 1.0);
            let made = create_on(&self.env, &**media, &other, &new, &quiet).await;
            made.unwrap_or_else(|error| panic!("{}: {}: {error}", case.place, path.display()));
            self.tally.reused += 1;
        }
    }

    /// Power cuts while the image is opened, and while the interrupted operation is repeated.
    async fn crash_again(&mut self, image: &CrashImage, case: &Case<'_>, rng: &mut Rng) {
        let Some(op) = case.cut.filter(|op| !matches!(op, Op::Create | Op::Destroy)) else {
            return;
        };
        let (recorder, devices) =
            Recorder::from_image(&self.env, Duration::from_micros(200), image);
        let layout = self.history.layout.clone();
        let media = SimMedia::on(devices, Some(recorder.clone()), layout.sector).await.unwrap();
        let media = Arc::new(media);
        let mut pool = Some(open(&self.env, &media).await.unwrap());
        perform(&self.env, &media, &mut pool, &layout, op).await.unwrap();
        drop(pool);
        let images = recorder.images(rng, &policy().at(Points::Sampled(5)));
        for again in images {
            self.tally.second += 1;
            let media = self.media(&again).await;
            let opened = open(&self.env, &media).await;
            let place = format!("{}; then {}", case.place, again.describe());
            let pool = opened.unwrap_or_else(|error| panic!("{place}: {error}"));
            compare(&pool, &self.history.model, &Case { place, ..*case }).await;
        }
    }
}

/// Whether an error says that the volume was never made, or is being destroyed.
fn is_unfinished(error: &PoolError) -> Result<(), ()> {
    match error {
        PoolError::NoVolume { .. } | PoolError::Unfinished { .. } => Ok(()),
        _ => Err(()),
    }
}

/// The devices that the manifest lists.
async fn listed(media: &SimMedia) -> BTreeSet<PathBuf> {
    let text = media.read_text(&folder().join(FILE)).await.unwrap().unwrap_or_default();
    let Ok(manifest) = toml::from_str::<Manifest>(&text) else { return BTreeSet::new() };
    assert!([Stage::Ready, Stage::Unfinished].contains(&manifest.stage));
    manifest.devices.into_iter().map(|place| folder().join(place.path)).collect()
}

fn members(pool: &Pool) -> BTreeSet<PathBuf> {
    pool.status().members.into_iter().map(|member| member.path).collect()
}

/// The volume is in the state of one version between those that the case allows.
async fn compare(pool: &Pool, model: &BlockModel, case: &Case<'_>) -> Version {
    let chain = pool.chain();
    let now = chain.now();
    let blocks = read_all(chain, now).await;
    let blocks = blocks.unwrap_or_else(|error| panic!("{}: {error}", case.place));
    let checked =
        model.check(case.floor, case.newest, |lba| blocks.get(lba.0 as usize).cloned().flatten());
    let versions = checked.unwrap_or_else(|error| panic!("{}: {error}", case.place));
    versions.newest().unwrap_or(now)
}
