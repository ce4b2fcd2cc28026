//! Changes of an open volume: grow, shrink, replace devices. Only one runs at a time.
//!
//! The chain's label lists the links, each device's label names its volume, and the manifest says where the
//! devices are. Each change updates them in an order in which a crash leaves either the old volume or the new
//! one, and at most
//!
//! - leftovers in the manifest, which may carry a label of this volume: the next `open` frees them;
//! - links in the manifest that the chain does not have: `open` frees these too;
//! - a link that is half emptied, or a side that is half rebuilt: it serves, and the same call resumes where
//!   it ended, or starts again.

use std::path::{Path, PathBuf};

use async_recursion::async_recursion;
use uuid::Uuid;

use super::assemble::{Seat, assemble, split, take_seats};
use super::create::{check_link, link_claims, place};
use super::format::{DATA_START, Role};
use super::manifest::{Manifest, Place};
use super::prepare::{self, Claim, Progress};
use super::spec::{DeviceSpec, LinkSpec};
use super::{Member, Pool, PoolError, PoolMirror, destroy, format};
use crate::block::{BLOCK_SIZE, Blocks};
use crate::device::{SideState, kinds};
use crate::tree::{TreeError, catalogue};
use crate::txn::{Transact, TransactionManager};

/// How to grow a volume.
#[derive(Clone, Debug, Default)]
pub struct ExtendRequest {
    /// Its new size in bytes.
    pub size: Option<u64>,
    /// A link to be added, before the size is changed.
    pub link: Option<LinkSpec>,
    /// Whether to overwrite devices that hold something else.
    pub force: bool,
}

/// How to shrink a volume.
#[derive(Clone, Debug)]
pub enum ShrinkRequest {
    /// To this size in bytes. Nothing may be stored beyond it.
    Size(u64),
    /// By the link that contains this device.
    Link(PathBuf),
}

fn invalid(why: impl Into<String>) -> PoolError {
    PoolError::Invalid(why.into())
}

/// Refuses to let a volume end before its partitions do, even if they are empty there.
async fn refuse_cut(volume: &TransactionManager, blocks: u64) -> Result<(), PoolError> {
    if blocks >= Transact::blocks(volume) {
        return Ok(());
    }
    let partitions = match catalogue::list(volume).await {
        Ok(partitions) => partitions,
        Err(TreeError::NoCatalogue | TreeError::Foreign(_)) => return Ok(()),
        Err(error) => return Err(invalid(error.to_string())),
    };
    match partitions.iter().max_by_key(|it| it.end()).filter(|it| it.end() > blocks) {
        None => Ok(()),
        Some(last) => Err(invalid(format!(
            "partition {} ends at byte {}; copy what it holds elsewhere and drop it first: partitions and \
             filesystems do not become smaller",
            last.name,
            last.end().saturating_mul(BLOCK_SIZE as u64)
        ))),
    }
}

impl Pool {
    /// Adds a link, makes the volume larger, or both.
    ///
    /// # Errors
    /// As [`super::create`]; if a link cannot be added, the volume is unchanged.
    #[async_recursion]
    pub async fn extend(&self, request: &ExtendRequest) -> Result<(), PoolError> {
        self.refuse_change(request.size.is_some())?;
        let mut manifest = self.manifest.lock().await;
        if let Some(link) = &request.link {
            self.add_link(&mut manifest, link, request.force, None).await?;
        }
        match request.size {
            Some(size) => self.set_size(size, |new, old| new >= old).await,
            None => Ok(()),
        }
    }

    /// Removes a link or makes the volume smaller. `progress` counts the blocks that are moved off the link.
    ///
    /// # Errors
    /// [`PoolError::Chain`] when content lies beyond the new end, or the other links have no room for the
    /// link's content.
    pub async fn shrink(
        &self,
        request: &ShrinkRequest,
        progress: Progress<'_>,
    ) -> Result<(), PoolError> {
        self.refuse_change(matches!(request, ShrinkRequest::Size(_)))?;
        let mut manifest = self.manifest.lock().await;
        match request {
            ShrinkRequest::Size(size) => self.set_size(*size, |new, old| new <= old).await,
            ShrinkRequest::Link(path) => {
                let member = self.member(path)?;
                self.remove_link(&mut manifest, &member, progress).await
            }
        }
    }

    async fn set_size(
        &self,
        size: u64,
        fits: impl FnOnce(u64, u64) -> bool,
    ) -> Result<(), PoolError> {
        let blocks = size.div_ceil(BLOCK_SIZE as u64);
        let now = self.chain.label().blocks;
        if !fits(blocks, now) {
            return Err(invalid(format!(
                "the volume has {} bytes: extend makes it larger, shrink smaller",
                now * BLOCK_SIZE as u64
            )));
        }
        if blocks >= now {
            return Ok(self.chain.resize(blocks).await?);
        }
        // The first check is before transactions are aborted for it; the second when no further partitions
        // can come.
        refuse_cut(&self.transactions, blocks).await?;
        self.transactions
            .exclusively(async || {
                // What the check reads is durable.
                self.chain.commit(self.chain.now()).await?;
                let options = self.transactions.options().clone();
                let quiet = TransactionManager::new(&self.env, self.chain.clone(), options);
                refuse_cut(&quiet, blocks).await?;
                Ok::<_, PoolError>(self.chain.resize(blocks).await?)
            })
            .await
    }

    /// The member at `path`.
    fn member(&self, path: &Path) -> Result<Place, PoolError> {
        let absolute = |path: &Path| kinds::absolute(path).unwrap_or_else(|_| path.to_owned());
        let wanted = absolute(path);
        let members = self.members.lock();
        let found = members.iter().find(|member| absolute(&member.path) == wanted);
        let device = path.display().to_string();
        found.map(|member| member.place.clone()).ok_or(PoolError::NoMember { device })
    }

    /// Applies `look` to a slot of a group, if any of its devices is present.
    fn model(&self, role: Role, group: Uuid) -> Option<format::Member> {
        let members = self.members.lock();
        let of_group = members.iter().filter(|m| m.place.role == role && m.place.group == group);
        of_group.filter_map(|member| member.slot.as_ref()).map(|slot| slot.member.clone()).next()
    }

    /// The order is: leftovers in the manifest; labels; the manifest; the chain's label. Until the chain has
    /// the link, `open` frees it.
    async fn add_link(
        &self,
        manifest: &mut Manifest,
        link: &LinkSpec,
        force: bool,
        replaces: Option<(Uuid, Progress<'_>)>,
    ) -> Result<(), PoolError> {
        check_link(link)?;
        self.check_writable()?;
        self.refuse_members(link.devices()).await?;
        let mut made = Vec::new();
        let group = self.env.uuid();
        let new = NewLink { link, group, replaces, force };
        let result = self.add_link_parts(manifest, &new, &mut made).await;
        if result.is_err() {
            self.undo_link(manifest, group, made).await;
        }
        result
    }

    async fn add_link_parts(
        &self,
        manifest: &mut Manifest,
        new: &NewLink<'_>,
        made: &mut Vec<PathBuf>,
    ) -> Result<(), PoolError> {
        let media = &*self.media;
        let NewLink { link, group, force, .. } = *new;
        let default = DATA_START + self.largest_extent();
        prepare::make_files(media, link.devices(), default, manifest.sector, made).await?;
        let extent = prepare::link_room(media, link, manifest.sector, force, Some(self.id)).await?;
        let claims = link_claims(manifest, link, group, extent, 0);
        let replaces = new.replaces.map(|(old, _)| old);
        let place = |claim| Place { replaces, ..place(&self.folder, claim) };
        let places: Vec<Place> = claims.iter().map(place).collect();
        manifest.leftovers.extend(places.clone());
        manifest.write(media, &self.folder).await?;
        for claim in &claims {
            prepare::label(&self.env, media, claim, force).await?;
        }
        manifest.leftovers.retain(|left| left.group != group);
        manifest.devices.extend(places.clone());
        manifest.write(media, &self.folder).await?;
        let seats = self.seats(manifest, places).await?;
        let mut warnings = Vec::new();
        let assembled =
            assemble(&self.env, &seats, Role::Link, group, self.standby, &mut warnings).await?;
        let (link, _) = split(group, &assembled)?;
        let held: Vec<Member> = seats.into_iter().map(Member::from).collect();
        self.mirrors.lock().extend(assembled.mirrors);
        self.members.lock().extend(held);
        match new.replaces {
            // The map has room for only one of the two.
            Some((old, progress)) if !self.chain.can_add(&link) => {
                Ok(self.chain.replace_link(old, link, progress).await?)
            }
            _ => Ok(self.chain.add_link(link).await?),
        }
    }

    /// Fails when the chain refuses writes: the content of its devices is then unknown.
    fn check_writable(&self) -> Result<(), PoolError> {
        match self.chain.status().poisoned {
            Some(why) => Err(crate::block::StoreError::Poisoned(why.into()).into()),
            None => Ok(()),
        }
    }

    fn largest_extent(&self) -> u64 {
        let members = self.members.lock();
        let slots = members.iter().filter(|member| member.place.role == Role::Link);
        slots.filter_map(|member| Some(member.slot.as_ref()?.member.length)).max().unwrap_or(0)
    }

    async fn undo_link(&self, manifest: &mut Manifest, group: Uuid, made: Vec<PathBuf>) {
        // If the failure came while the chain's label was written, or later, the link may be in the chain.
        // Only the next opening can tell.
        let is_in = self.chain.label().links.iter().any(|link| link.id == *group.as_bytes());
        if is_in || self.check_writable().is_err() {
            return;
        }
        let listed = manifest.devices.iter().filter(|place| place.group == group).cloned();
        let listed: Vec<Place> = listed.collect();
        manifest.leftovers.extend(listed);
        let forgotten = self.forget_group(manifest, Role::Link, group).await;
        self.undo(manifest, forgotten, made).await;
    }

    /// Frees the leftovers, and removes the files that were made.
    async fn undo(
        &self,
        manifest: &mut Manifest,
        so_far: Result<(), PoolError>,
        made: Vec<PathBuf>,
    ) {
        let cleared = self.clear_leftovers(manifest).await;
        if let Err(error) = so_far.and(cleared) {
            tracing::warn!(%error, "a change that failed is undone when the volume is opened next");
        }
        for path in made {
            if let Err(error) = self.media.remove(&path).await {
                tracing::warn!(path = %path.display(), %error, "a new file was left behind");
            }
        }
    }

    /// Refuses devices that are members already.
    async fn refuse_members<'a>(
        &self,
        devices: impl Iterator<Item = &'a DeviceSpec>,
    ) -> Result<(), PoolError> {
        let mut all: Vec<DeviceSpec> = devices.cloned().collect();
        let mut known: Vec<PathBuf> = Vec::new();
        for member in self.members.lock().iter().filter(|member| member.slot.is_some()) {
            if !known.contains(&member.path) {
                known.push(member.path.clone());
            }
        }
        all.extend(known.into_iter().map(DeviceSpec::new));
        prepare::refuse_same(&*self.media, all.iter()).await
    }

    /// Opens the devices at `places`, and locks the volume's slots on them.
    async fn seats(&self, manifest: &Manifest, places: Vec<Place>) -> Result<Vec<Seat>, PoolError> {
        let part = Manifest { devices: places, ..manifest.clone() };
        take_seats(&self.env, &*self.media, &self.folder, &part).await
    }

    /// The order is: the chain's label, device labels, the manifest. `open` frees a link that the manifest
    /// lists and the chain does not have.
    async fn remove_link(
        &self,
        manifest: &mut Manifest,
        member: &Place,
        progress: Progress<'_>,
    ) -> Result<(), PoolError> {
        let Place { role, group, .. } = member.clone();
        if role != Role::Link {
            return Err(invalid(format!("that device is the {}, not a link", role.name())));
        }
        if self.model(role, group).is_some_and(|model| model.map_bytes > 0) {
            return Err(invalid(
                "the map area lies on that link, so it cannot leave; use a volume with a map \
                 device, or make the link a mirror",
            ));
        }
        self.chain.remove_link(group, progress).await?;
        self.forget_group(manifest, role, group).await
    }

    /// Frees the slots of a group that the chain does not have, and removes its devices from the manifest.
    /// Devices that cannot be freed are listed as leftovers.
    async fn forget_group(
        &self,
        manifest: &mut Manifest,
        role: Role,
        group: Uuid,
    ) -> Result<(), PoolError> {
        let gone: Vec<Member> = {
            let mut members = self.members.lock();
            let is_gone = |m: &mut Member| m.place.role == role && m.place.group == group;
            members.extract_if(.., is_gone).collect()
        };
        self.mirrors.lock().retain(|mirror| mirror.role != role || mirror.group != group);
        for member in gone {
            let place = member.place.clone();
            let freed = destroy::free(&self.env, &*self.media, member.into(), self.sector).await;
            if let Err(error) = freed {
                tracing::warn!(path = %place.path.display(), %error, "not freed");
                manifest.leftovers.push(place);
            }
        }
        manifest.devices.retain(|place| place.group != group);
        for place in manifest.devices.iter_mut().filter(|place| place.replaces == Some(group)) {
            place.replaces = None;
        }
        manifest.write(&*self.media, &self.folder).await
    }

    /// Replaces the member at `old` by the device at `new`, and copies the member's content there: `progress`
    /// counts bytes of a mirror, or blocks of a link.
    ///
    /// # Errors
    /// [`PoolError::Invalid`] when this member cannot be replaced; as [`super::create`] for `new`.
    pub async fn replace(
        &self,
        old: &Path,
        new: &DeviceSpec,
        force: bool,
        progress: Progress<'_>,
    ) -> Result<(), PoolError> {
        self.refuse_change(false)?;
        let mut manifest = self.manifest.lock().await;
        let member = self.member(old)?;
        let mirror = self.mirror_of(&member);
        if let Some(mirror) = mirror {
            let new = NewSide { mirror: &mirror, old: &member, device: new, force };
            self.replace_side(&mut manifest, &new).await?;
            return self.rebuild_side(&mirror, usize::from(member.side), progress).await;
        }
        let model = self.model(member.role, member.group);
        match model {
            Some(model) if member.role == Role::Link && model.columns == 1 => {
                if model.map_bytes > 0 {
                    // Checked before a device is added in vain.
                    return self.remove_link(&mut manifest, &member, progress).await;
                }
                if !self.is_taking_over(&manifest, &new.path, member.group) {
                    let link = LinkSpec::plain(new.clone());
                    let replaces = Some((member.group, progress));
                    self.add_link(&mut manifest, &link, force, replaces).await?;
                }
                let old = member.group;
                match self.chain.label().links.iter().any(|link| link.id == *old.as_bytes()) {
                    true => self.remove_link(&mut manifest, &member, progress).await,
                    false => self.forget_group(&mut manifest, Role::Link, old).await,
                }
            }
            _ if member.role == Role::Link => Err(invalid(
                "that device is one column of a stripe without mirrors; extend the volume by a \
                 link, and shrink it by this one",
            )),
            _ => Err(invalid(format!(
                "the {} has no other copy, so its device cannot be replaced while in use",
                member.role.name()
            ))),
        }
    }

    fn mirror_of(&self, place: &Place) -> Option<PoolMirror> {
        let mirrors = self.mirrors.lock();
        mirrors.iter().find(|mirror| mirror.holds(place)).cloned()
    }

    /// Whether the device at `path` was added to replace the link `group`, by a call that did not finish.
    fn is_taking_over(&self, manifest: &Manifest, path: &Path, group: Uuid) -> bool {
        let place = self.member(path).ok();
        let place = place.and_then(|new| manifest.devices.iter().find(|p| p.is_for_same(&new)));
        place.is_some_and(|place| place.replaces == Some(group))
    }

    /// The new device gets its label, as a side that was never in sync; the old one is recorded as out of
    /// sync; then the manifest changes. A crash before that leaves the old side, in sync or stale; a crash
    /// after it, the new one, stale. The other device is a leftover, which `open` frees.
    async fn replace_side(
        &self,
        manifest: &mut Manifest,
        new: &NewSide<'_>,
    ) -> Result<(), PoolError> {
        let NewSide { mirror, old, .. } = *new;
        let side = usize::from(old.side);
        let states = mirror.mirror.states().borrow().clone();
        let others = states.iter().enumerate().any(|(i, s)| i != side && *s == SideState::InSync);
        if !others {
            return Err(crate::device::MirrorError::LastInSync { side }.into());
        }
        self.refuse_members(std::iter::once(new.device)).await?;
        let mut made = Vec::new();
        let place = match self.list_side(manifest, new, &mut made).await {
            Ok(place) => place,
            Err(error) => {
                self.undo(manifest, Ok(()), made).await;
                return Err(error);
            }
        };
        let gone = self.take_member(old);
        let mut seats = self.seats(manifest, vec![place]).await?;
        let seat = seats.pop().ok_or_else(|| invalid("the new device has gone"))?;
        let slot = seat.found?;
        mirror.mirror.replace(side, slot.extent()?)?;
        mirror.labels.replace(side, slot.clone()).await;
        let member = Member { place: seat.place, path: seat.path, slot: Some(slot) };
        for known in self.mirrors.lock().iter_mut().filter(|known| known.holds(old)) {
            known.paths[side] = member.path.clone();
        }
        self.members.lock().push(member);
        self.free_replaced(manifest, gone).await;
        Ok(())
    }

    /// Frees a device that is listed only as a leftover.
    async fn free_replaced(&self, manifest: &mut Manifest, gone: Option<Member>) {
        let Some(gone) = gone else { return };
        let place = gone.place.clone();
        let freed = destroy::free(&self.env, &*self.media, gone.into(), self.sector).await;
        let written = match freed {
            Ok(()) => {
                manifest.leftovers.retain(|left| *left != place);
                manifest.write(&*self.media, &self.folder).await
            }
            failed => failed,
        };
        if let Err(error) = written {
            tracing::warn!(%error, "a replaced device is freed when the volume is opened next");
        }
    }

    /// Labels the new side, records the old one as out of sync, and replaces it in the manifest.
    async fn list_side(
        &self,
        manifest: &mut Manifest,
        new: &NewSide<'_>,
        made: &mut Vec<PathBuf>,
    ) -> Result<Place, PoolError> {
        let NewSide { mirror, old, .. } = *new;
        let side = usize::from(old.side);
        let place = self.prepare_side(manifest, new, made).await?;
        let state = mirror.mirror.states().borrow().get(side).copied();
        if matches!(state, Some(SideState::InSync | SideState::Rebuilding { .. })) {
            mirror.mirror.take_out(side).await?;
        }
        let mut changed = manifest.clone();
        changed.leftovers.retain(|left| *left != place);
        for entry in changed.devices.iter_mut().filter(|entry| entry.is_for_same(old)) {
            *entry = place.clone();
        }
        let is_there = self.members.lock().iter().any(|m| m.place == *old && m.slot.is_some());
        if is_there {
            changed.leftovers.push(old.clone());
        }
        changed.write(&*self.media, &self.folder).await?;
        *manifest = changed;
        Ok(place)
    }

    /// Labels a device as another side of a mirror.
    async fn prepare_side(
        &self,
        manifest: &mut Manifest,
        new: &NewSide<'_>,
        made: &mut Vec<PathBuf>,
    ) -> Result<Place, PoolError> {
        let NewSide { mirror, old, device, force } = *new;
        let media = &*self.media;
        let model = self.model(mirror.role, mirror.group);
        let model = model.ok_or_else(|| invalid("no side of the mirror is there"))?;
        let (column, side) = (old.column, old.side);
        let member = format::Member { column, side, events: 0, in_sync: 0, sequence: 0, ..model };
        let default = DATA_START + member.length;
        prepare::make_files(media, std::iter::once(device), default, manifest.sector, made).await?;
        if mirror.role == Role::Link {
            let spec = LinkSpec::plain(device.clone());
            let have =
                prepare::link_room(media, &spec, manifest.sector, force, Some(self.id)).await?;
            if have < member.length {
                let device = device.path.display().to_string();
                let (need, have) = (member.length + DATA_START, have + DATA_START);
                return Err(PoolError::TooSmall { device, need, have });
            }
        }
        let claim = Claim { path: device.path.clone(), member, at_most: false };
        prepare::check_claim(media, &claim, force).await?;
        let place = place(&self.folder, &claim);
        manifest.leftovers.push(place.clone());
        manifest.write(media, &self.folder).await?;
        prepare::label(&self.env, media, &claim, force).await?;
        Ok(place)
    }

    fn take_member(&self, place: &Place) -> Option<Member> {
        let mut members = self.members.lock();
        let number = members.iter().position(|member| member.place == *place)?;
        Some(members.remove(number))
    }

    /// Rebuilds the sides that missed writes, one after the other: all that are present, or the one at
    /// `only`. `progress` counts bytes of a mirror.
    ///
    /// # Errors
    /// [`PoolError::NoMember`] when `only` is not a side of a mirror; [`PoolError::Mirror`] when it is in
    /// sync or missing, or a device fails.
    pub async fn rebuild(
        &self,
        only: Option<&Path>,
        progress: Progress<'_>,
    ) -> Result<(), PoolError> {
        self.refuse_change(false)?;
        let _changing = self.manifest.lock().await;
        if let Some(path) = only {
            let place = self.member(path)?;
            let device = path.display().to_string();
            let mirror = self.mirror_of(&place).ok_or(PoolError::NoMember { device })?;
            return self.rebuild_side(&mirror, usize::from(place.side), progress).await;
        }
        for mirror in self.mirrors() {
            let states = mirror.mirror.states().borrow().clone();
            for (side, state) in states.into_iter().enumerate() {
                if matches!(state, SideState::Stale | SideState::Failed) {
                    self.rebuild_side(&mirror, side, progress).await?;
                }
            }
        }
        Ok(())
    }

    async fn rebuild_side(
        &self,
        mirror: &PoolMirror,
        side: usize,
        progress: Progress<'_>,
    ) -> Result<(), PoolError> {
        if mirror.labels.slot(side).await.is_none() {
            let device = mirror.paths.get(side).map(|path| path.display().to_string());
            return Err(invalid(format!(
                "{} is missing; attach it and open the volume again, or replace it",
                device.unwrap_or_default()
            )));
        }
        let mut states = mirror.mirror.states();
        let work = mirror.mirror.rebuild(side);
        let watch = async {
            while states.changed().await.is_ok() {
                if let Some(SideState::Rebuilding { done, total }) = states.borrow().get(side) {
                    progress(*done, *total);
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            result = work => result?,
            () = watch => {}
        }
        Ok(())
    }

    /// Frees the leftovers of a change that did not finish: links that the manifest lists and the chain does
    /// not have, and unlisted devices that may carry a label. If one cannot be freed now, the next opening
    /// tries again; the volume can be used meanwhile.
    pub(super) async fn free_leftovers(&self) {
        let links: Vec<Uuid> =
            self.chain.label().links.iter().map(|link| Uuid::from_bytes(link.id)).collect();
        let mut manifest = self.manifest.lock().await;
        let mut left: Vec<Uuid> = Vec::new();
        for place in manifest.devices.iter().filter(|place| place.role == Role::Link) {
            if !links.contains(&place.group) && !left.contains(&place.group) {
                left.push(place.group);
            }
        }
        for group in left {
            tracing::warn!(volume = self.name, link = %group, "freeing a link left over by a crash");
            let forgotten = self.forget_group(&mut manifest, Role::Link, group).await;
            if let Err(error) = forgotten {
                tracing::warn!(volume = self.name, %error, "the link could not be freed");
            }
        }
        if let Err(error) = self.clear_leftovers(&mut manifest).await {
            tracing::warn!(volume = self.name, %error, "leftover devices could not be freed");
        }
    }

    /// Frees the leftovers that can be freed, and drops those that are not leftovers.
    async fn clear_leftovers(&self, manifest: &mut Manifest) -> Result<(), PoolError> {
        if manifest.leftovers.is_empty() {
            return Ok(());
        }
        let mut kept = Vec::new();
        for place in std::mem::take(&mut manifest.leftovers) {
            let is_listed = |other: &Place| other.is_for_same(&place) && other.path == place.path;
            if manifest.devices.iter().any(is_listed) || kept.contains(&place) {
                continue;
            }
            if let Err(error) = self.free_place(manifest, &place).await {
                tracing::warn!(path = %place.path.display(), %error, "not freed");
                kept.push(place);
            }
        }
        manifest.leftovers = kept;
        manifest.write(&*self.media, &self.folder).await
    }

    /// Frees the volume's slots on the device at `place`, if there are any.
    async fn free_place(&self, manifest: &Manifest, place: &Place) -> Result<(), PoolError> {
        let path = self.folder.join(&place.path);
        let found = self.media.find(&path).await;
        if found.map_err(|error| PoolError::io(&path, error))?.is_none() {
            return Ok(());
        }
        for seat in self.seats(manifest, vec![place.clone()]).await? {
            match &seat.found {
                Ok(_) => destroy::free(&self.env, &*self.media, seat, self.sector).await?,
                Err(PoolError::Device(error)) => return Err(error.clone().into()),
                // It belongs to another volume, or to none.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// A link that is to be added.
struct NewLink<'a> {
    link: &'a LinkSpec,
    group: Uuid,
    /// The link that it replaces, if any, and the callback for blocks copied.
    replaces: Option<(Uuid, Progress<'a>)>,
    force: bool,
}

/// A side of a mirror and its replacement.
struct NewSide<'a> {
    mirror: &'a PoolMirror,
    old: &'a Place,
    device: &'a DeviceSpec,
    force: bool,
}
