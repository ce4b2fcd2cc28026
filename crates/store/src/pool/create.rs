//! Making a volume.
//!
//! 1. Everything is checked, and refused if it does not fit. Nothing has been changed.
//! 2. Missing files are made. A crash leaves empty files.
//! 3. The manifest is written, as unfinished: from here on a crash leaves a volume that `open` refuses and
//!    `destroy` undoes, with the space that it took on shared devices.
//! 4. Labels are written, shared devices first, then the chain's own.
//! 5. The manifest is written as ready.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_env::Env;
use uuid::Uuid;

use super::PoolError;
use super::assemble::{put_together, take_seats};
use super::destroy;
use super::format::{DATA_START, Member, NAME, Role};
use super::manifest::{self, Manifest, Place, Stage};
use super::media::Media;
use super::prepare::{self, Claim, Progress};
use super::sizing;
use super::spec::{CacheSpec, DeviceSpec, LinkSpec, NewVolume};
use crate::block::BLOCK_SIZE;
use crate::chain::{Chain, Create};

/// Size of a file for a cache, if none is given.
const SMALLEST_CACHE: u64 = 4 << 20;

/// The sizes of a volume, computed from its devices.
struct Plan {
    /// Bytes of each link's extents.
    links: Vec<u64>,
    segment_blocks: u32,
    max_segments: u32,
    map_bytes: u64,
}

/// Makes the volume `new` from its devices, with its manifest in `folder`. `progress` counts each device
/// twice: when it is found or made, and when it is labelled.
///
/// # Errors
/// A [`PoolError`] with the next step; all changes are undone.
pub async fn create_on(
    env: &Env,
    media: &dyn Media,
    folder: &Path,
    new: &NewVolume,
    progress: Progress<'_>,
) -> Result<(), PoolError> {
    check(new)?;
    let path = folder.join(manifest::FILE);
    let there = media.read_text(&path).await.map_err(|error| PoolError::io(&path, error))?;
    if there.is_some() {
        return Err(PoolError::Exists { folder: folder.to_owned() });
    }
    media.make_folder(folder).await.map_err(|error| PoolError::io(folder, error))?;
    let mut made = Vec::new();
    let result = create_all(env, media, folder, new, &Steps::of(new, progress), &mut made).await;
    if result.is_err() {
        undo(env, media, folder, &made).await;
    }
    result
}

/// A step counts as this many units, so that a long step shows progress.
const STEP: u64 = 1000;

/// The progress of making a volume.
struct Steps<'a> {
    done: AtomicU64,
    total: u64,
    progress: Progress<'a>,
}

impl<'a> Steps<'a> {
    /// Each device is made or found, and then labelled.
    fn of(new: &NewVolume, progress: Progress<'a>) -> Steps<'a> {
        let links: usize = new.links.iter().map(|link| link.devices().count()).sum();
        let caches = [&new.cache, &new.body_cache].into_iter().flatten().count();
        let total = 2 * (links + new.map.len() + caches) as u64 * STEP;
        Steps { done: AtomicU64::new(0), total, progress }
    }

    fn one_more(&self) {
        (self.progress)(self.done.fetch_add(STEP, Ordering::Relaxed) + STEP, self.total);
    }

    /// Part of the next step is done.
    fn within(&self, share: f64) {
        let part = (share * STEP as f64) as u64;
        (self.progress)(self.done.load(Ordering::Relaxed) + part, self.total);
    }
}

async fn undo(env: &Env, media: &dyn Media, folder: &Path, made: &[PathBuf]) {
    match destroy::destroy_on(env, media, folder).await {
        Ok(()) | Err(PoolError::NoVolume { .. }) => {}
        Err(error) => tracing::warn!(%error, "an unfinished volume was left behind"),
    }
    for path in made {
        if let Err(error) = media.remove(path).await {
            tracing::warn!(path = %path.display(), %error, "a new file was left behind");
        }
    }
}

async fn create_all(
    env: &Env,
    media: &dyn Media,
    folder: &Path,
    new: &NewVolume,
    steps: &Steps<'_>,
    made: &mut Vec<PathBuf>,
) -> Result<(), PoolError> {
    prepare::refuse_same(media, all_devices(new)).await?;
    for (number, link) in new.links.iter().enumerate() {
        let default = sizing::device_bytes(new, link, number == 0);
        for device in link.devices() {
            prepare::make_file(media, device, default, new.sector, made, &|share| {
                steps.within(share)
            })
            .await?;
            steps.one_more();
        }
    }
    let mut links = Vec::new();
    for link in &new.links {
        links.push(prepare::link_room(media, link, new.sector, new.force, None).await?);
    }
    let plan = plan(new, links)?;
    let total: u64 = plan.links.iter().sum();
    let cache_default = (total / 16).max(SMALLEST_CACHE);
    let file = DATA_START + plan.map_bytes.next_multiple_of(DATA_START);
    for device in &new.map {
        prepare::make_file(media, device, file, new.sector, made, &|share| steps.within(share))
            .await?;
        steps.one_more();
    }
    for cache in [&new.cache, &new.body_cache].into_iter().flatten() {
        let bytes = cache.bytes.unwrap_or(cache_default).next_multiple_of(DATA_START);
        let size = DATA_START + bytes;
        prepare::make_file(media, &cache.device, size, new.sector, made, &|_| {}).await?;
        steps.one_more();
    }

    let mut manifest = Manifest::new(env.uuid(), &new.name, new.sector);
    manifest.settings = new.settings;
    if let Some(follows) = &new.follows {
        manifest.volume = follows.volume;
        manifest.follows = Some(follows.address.clone());
    }
    let claims = claims(env, folder, new, &plan, cache_default, &mut manifest);
    for claim in &claims {
        prepare::check_claim(media, claim, new.force).await?;
    }
    manifest.write(media, folder).await?;
    for claim in claims.iter().rev() {
        prepare::label(env, media, claim, new.force).await?;
        steps.one_more();
    }
    make_chain(env, media, folder, new, &plan, &manifest).await?;
    manifest.stage = Stage::Ready;
    manifest.write(media, folder).await
}

async fn make_chain(
    env: &Env,
    media: &dyn Media,
    folder: &Path,
    new: &NewVolume,
    plan: &Plan,
    manifest: &Manifest,
) -> Result<(), PoolError> {
    let seats = take_seats(env, media, folder, manifest).await?;
    let (put, absent) = put_together(env, &seats, false).await?;
    if let Some((_, error)) = absent.into_iter().next() {
        return Err(error);
    }
    let create = Create {
        volume: manifest.volume,
        blocks: new.size.div_ceil(BLOCK_SIZE as u64),
        segment_blocks: plan.segment_blocks,
        max_segments: plan.max_segments,
        cleaning: new.cleaning,
        placement: new.placement,
        follows: new.follows.is_some(),
    };
    Ok(Chain::create(env, put.parts, &create).await?)
}

fn all_devices(new: &NewVolume) -> impl Iterator<Item = &DeviceSpec> {
    let caches = [&new.cache, &new.body_cache].into_iter().flatten().map(|cache| &cache.device);
    // The two caches may be on one device, and so may the map; two links may not.
    let mut paths: Vec<&DeviceSpec> = Vec::new();
    for device in new.map.iter().chain(caches) {
        if !paths.iter().any(|other| other.path == device.path) {
            paths.push(device);
        }
    }
    new.links.iter().flat_map(LinkSpec::devices).chain(paths)
}

fn check(new: &NewVolume) -> Result<(), PoolError> {
    let refuse = |why: &str| Err(PoolError::Invalid(why.to_owned()));
    if new.name.is_empty() || new.name.len() > NAME || new.name.contains('\0') {
        return refuse("a volume's name has 1 to 64 bytes");
    }
    if new.size == 0 {
        return refuse("a volume has at least one block; give it a size");
    }
    if new.links.is_empty() {
        return refuse("a volume needs at least one link; name a device for it");
    }
    if new.sector.is_some_and(|sector| ![512, 4096].contains(&sector)) {
        return refuse("a sector has 512 or 4096 bytes");
    }
    let per = new.segment_blocks.unwrap_or(crate::chain::format::ENTRIES_PER_PAGE);
    if per == 0 || !per.is_multiple_of(crate::chain::format::ENTRIES_PER_PAGE) {
        return refuse("a segment has a multiple of 240 blocks");
    }
    if !new.growth.is_finite() || new.growth < 1.0 {
        return refuse("growth is 1 or more");
    }
    new.settings.check()?;
    if new.map.len() > 64 {
        return refuse("a mirror has at most 64 sides");
    }
    let twice =
        new.map.iter().enumerate().find_map(|(number, side)| {
            new.map[..number].iter().find(|other| other.path == side.path)
        });
    if let Some(side) = twice {
        let path = side.path.display().to_string();
        return Err(PoolError::Twice { first: path.clone(), second: path });
    }
    new.links.iter().try_for_each(check_link)
}

/// Checks the shape of a link.
pub(super) fn check_link(link: &LinkSpec) -> Result<(), PoolError> {
    let refuse = |why: &str| Err(PoolError::Invalid(why.to_owned()));
    let sides = link.columns.first().map_or(0, Vec::len);
    if sides == 0 || sides > 64 || link.columns.len() > 255 {
        return refuse("a link has 1 to 255 columns of 1 to 64 sides");
    }
    if link.columns.iter().any(|column| column.len() != sides) {
        return refuse("every column of a link has as many sides");
    }
    let unit = link.unit;
    if link.columns.len() > 1 && (unit == 0 || !unit.is_multiple_of(BLOCK_SIZE as u32)) {
        return refuse("a stripe's unit is a multiple of 4096 bytes");
    }
    Ok(())
}

/// The size of a link whose columns have `extent` bytes each.
fn link_bytes(link: &LinkSpec, extent: u64) -> u64 {
    match link.columns.len() as u64 {
        1 => extent,
        columns => extent / u64::from(link.unit) * u64::from(link.unit) * columns,
    }
}

fn plan(new: &NewVolume, links: Vec<u64>) -> Result<Plan, PoolError> {
    let sizes: Vec<u64> =
        new.links.iter().zip(&links).map(|(link, extent)| link_bytes(link, *extent)).collect();
    let smallest = sizes.iter().copied().min().unwrap_or(0);
    let per = new.segment_blocks.unwrap_or_else(|| sizing::segment_blocks(smallest));
    let segments = sizes.iter().map(|size| size / sizing::segment_bytes(per)).sum();
    let max_segments = sizing::max_segments(segments, new.growth, per);
    let map_bytes = sizing::map_bytes(per, max_segments);
    if new.map.is_empty() && sizes.first().is_some_and(|first| *first < map_bytes) {
        let first = new.links.first().and_then(|link| link.devices().next());
        return Err(PoolError::TooSmall {
            device: first.map_or_else(String::new, |device| device.path.display().to_string()),
            need: map_bytes + DATA_START,
            have: sizes[0] + DATA_START,
        });
    }
    Ok(Plan { links, segment_blocks: per, max_segments, map_bytes })
}

/// Every extent of the volume, with its place in the manifest.
fn claims(
    env: &Env,
    folder: &Path,
    new: &NewVolume,
    plan: &Plan,
    cache_default: u64,
    manifest: &mut Manifest,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (number, (link, extent)) in new.links.iter().zip(&plan.links).enumerate() {
        let on_first = number == 0 && new.map.is_empty();
        let map_bytes = if on_first { plan.map_bytes } else { 0 };
        claims.extend(link_claims(manifest, link, env.uuid(), *extent, map_bytes));
    }
    let map = LinkSpec::mirror(new.map.clone());
    let sides = group_claims(manifest, Role::Map, &map, env.uuid(), plan.map_bytes);
    claims.extend(sides);
    for (cache, role) in [(&new.cache, Role::TailCache), (&new.body_cache, Role::BodyCache)] {
        let Some(CacheSpec { device, bytes }) = cache else { continue };
        let spec = LinkSpec::plain(device.clone());
        let wanted = bytes.unwrap_or(cache_default) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
        let mut of_cache = group_claims(manifest, role, &spec, env.uuid(), wanted);
        of_cache.iter_mut().for_each(|claim| claim.at_most = bytes.is_none());
        claims.extend(of_cache);
    }
    manifest.devices = claims.iter().map(|claim| place(folder, claim)).collect();
    claims
}

/// A claim's line in the manifest.
pub(super) fn place(folder: &Path, claim: &Claim) -> Place {
    let Member { role, group, column, side, .. } = claim.member;
    let path = manifest::to_stored(folder, &claim.path);
    Place { path, role, group, column, side, replaces: None }
}

/// The extents of a link.
pub(super) fn link_claims(
    manifest: &Manifest,
    link: &LinkSpec,
    group: Uuid,
    extent: u64,
    map_bytes: u64,
) -> Vec<Claim> {
    let mut claims = group_claims(manifest, Role::Link, link, group, extent);
    claims.iter_mut().for_each(|claim| claim.member.map_bytes = map_bytes);
    claims
}

fn group_claims(
    manifest: &Manifest,
    role: Role,
    spec: &LinkSpec,
    group: Uuid,
    extent: u64,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (column, sides) in spec.columns.iter().enumerate() {
        for (side, device) in sides.iter().enumerate() {
            let member = Member {
                sequence: 0,
                device: Uuid::nil(),
                volume: manifest.volume,
                name: manifest.name.clone(),
                role,
                group,
                columns: spec.columns.len() as u8,
                column: column as u8,
                sides: sides.len() as u8,
                side: side as u8,
                unit: if spec.columns.len() > 1 { spec.unit } else { 0 },
                sector: manifest.sector.unwrap_or(0),
                start: DATA_START,
                length: extent,
                map_bytes: 0,
                events: 1,
                in_sync: u64::MAX >> (64 - sides.len()),
            };
            claims.push(Claim { path: device.path.clone(), member, at_most: false });
        }
    }
    claims
}
