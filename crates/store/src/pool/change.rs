//! Changes of an open volume: larger, smaller, other devices. They are done one at a time.
//!
//! The chain's label says which links there are, each device's label whose it is, and the manifest
//! where the devices are. Each change goes through them in an order in which a crash leaves either
//! the old volume or the new one, and at most
//!
//! - devices with a label of this volume that the manifest does not list: they may be named again;
//! - links in the manifest that the chain does not have: the next `open` frees them;
//! - a link that is half emptied, or a side that is half rebuilt: it serves, and the same call goes
//!   on where it ended, or from the start.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::assemble::{Seat, assemble, split, take_seats};
use super::create::{check_link, link_claims, place};
use super::format::{DATA_START, Role};
use super::manifest::{Manifest, Place};
use super::prepare::{self, Claim};
use super::spec::{DeviceSpec, LinkSpec};
use super::{Member, Pool, PoolError, PoolMirror, destroy, format};
use crate::block::BLOCK_SIZE;
use crate::device::SideState;

/// Called with what is done of a long piece of work, and the whole of it, in one unit.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// How a volume shall grow.
#[derive(Clone, Debug, Default)]
pub struct ExtendRequest {
    /// Its new size in bytes.
    pub size: Option<u64>,
    /// A link to be added, before the size is changed.
    pub link: Option<LinkSpec>,
    /// Whether to write over devices that hold something.
    pub force: bool,
}

/// How a volume shall shrink.
#[derive(Clone, Debug)]
pub enum ShrinkRequest {
    /// To this size in bytes. Nothing may be stored beyond.
    Size(u64),
    /// By the link that this device is in.
    Link(PathBuf),
}

fn invalid(why: impl Into<String>) -> PoolError {
    PoolError::Invalid(why.into())
}

impl Pool {
    /// Adds a link, or room, or both.
    ///
    /// # Errors
    /// As [`super::create`]; a link that could not be added leaves the volume as it was.
    pub async fn extend(&self, request: &ExtendRequest) -> Result<(), PoolError> {
        let mut manifest = self.manifest.lock().await;
        if let Some(link) = &request.link {
            self.add_link(&mut manifest, link, request.force).await?;
        }
        match request.size {
            Some(size) => self.set_size(size, |new, old| new >= old).await,
            None => Ok(()),
        }
    }

    /// Takes room or a link away. `progress` counts the blocks that are moved off the link.
    ///
    /// # Errors
    /// [`PoolError::Chain`] when something is stored beyond the new end, or the other links cannot
    /// hold what the link holds.
    pub async fn shrink(
        &self,
        request: &ShrinkRequest,
        progress: Progress<'_>,
    ) -> Result<(), PoolError> {
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
        Ok(self.chain.resize(blocks).await?)
    }

    /// The member at `path`.
    fn member(&self, path: &Path) -> Result<Place, PoolError> {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let wanted = absolute(path);
        let members = self.members.lock();
        let found = members.iter().find(|member| absolute(&member.path) == wanted);
        let device = path.display().to_string();
        found.map(|member| member.place.clone()).ok_or(PoolError::NoMember { device })
    }

    /// Runs `look` on a slot of a group, if any of its devices is there.
    fn model(&self, role: Role, group: Uuid) -> Option<format::Member> {
        let members = self.members.lock();
        let of_group = members.iter().filter(|m| m.place.role == role && m.place.group == group);
        of_group.filter_map(|member| member.slot.as_ref()).map(|slot| slot.member.clone()).next()
    }

    /// Labels, then the manifest, then the chain. Until the chain knows the link, it is one that
    /// `open` frees.
    async fn add_link(
        &self,
        manifest: &mut Manifest,
        link: &LinkSpec,
        force: bool,
    ) -> Result<Uuid, PoolError> {
        check_link(link)?;
        self.refuse_members(link.devices()).await?;
        let mut made = Vec::new();
        let before = manifest.clone();
        let group = self.env.uuid();
        let result = self.add_link_parts(manifest, link, group, force, &mut made).await;
        let Err(error) = result else { return Ok(group) };
        *manifest = before;
        self.undo_link(manifest, group).await;
        for path in made {
            if let Err(error) = self.media.remove(&path).await {
                tracing::warn!(path = %path.display(), %error, "a new file was left behind");
            }
        }
        Err(error)
    }

    async fn add_link_parts(
        &self,
        manifest: &mut Manifest,
        link: &LinkSpec,
        group: Uuid,
        force: bool,
        made: &mut Vec<PathBuf>,
    ) -> Result<(), PoolError> {
        let media = &*self.media;
        let default = DATA_START + self.largest_extent();
        prepare::make_files(media, link.devices(), default, manifest.sector, made).await?;
        let extent = prepare::link_room(media, link, manifest.sector, force, Some(self.id)).await?;
        let claims = link_claims(manifest, link, group, extent, 0);
        for claim in &claims {
            prepare::label(&self.env, media, claim, force).await?;
        }
        let places: Vec<Place> = claims.iter().map(|claim| place(&self.folder, claim)).collect();
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
        Ok(self.chain.add_link(link).await?)
    }

    fn largest_extent(&self) -> u64 {
        let members = self.members.lock();
        let slots = members.iter().filter(|member| member.place.role == Role::Link);
        slots.filter_map(|member| Some(member.slot.as_ref()?.member.length)).max().unwrap_or(0)
    }

    async fn undo_link(&self, manifest: &Manifest, group: Uuid) {
        // A failure that came after the chain's label was written leaves the link in the chain.
        if self.chain.label().links.iter().any(|link| link.id == *group.as_bytes()) {
            return;
        }
        let freed = self.free_group(Role::Link, group).await;
        if let Err(error) = freed.and(manifest.write(&*self.media, &self.folder).await) {
            tracing::warn!(%error, "a link that was not added is still listed");
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

    /// Opens the devices at `places`, and locks what is the volume's on them.
    async fn seats(&self, manifest: &Manifest, places: Vec<Place>) -> Result<Vec<Seat>, PoolError> {
        let part = Manifest { devices: places, ..manifest.clone() };
        take_seats(&self.env, &*self.media, &self.folder, &part).await
    }

    /// The chain first, then the labels, then the manifest: what the chain does not have, and the
    /// manifest still lists, `open` frees.
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
        self.free_group(role, group).await?;
        manifest.devices.retain(|place| place.group != group);
        manifest.write(&*self.media, &self.folder).await
    }

    /// Frees the slots of a group, and forgets its devices.
    async fn free_group(&self, role: Role, group: Uuid) -> Result<(), PoolError> {
        let gone: Vec<Member> = {
            let mut members = self.members.lock();
            let is_gone = |m: &mut Member| m.place.role == role && m.place.group == group;
            members.extract_if(.., is_gone).collect()
        };
        self.mirrors.lock().retain(|mirror| mirror.role != role || mirror.group != group);
        let sector = self.sector;
        for member in gone {
            destroy::free(&self.env, &*self.media, member.into(), sector).await?;
        }
        Ok(())
    }

    /// Puts the device at `new` in the place of the member at `old`, and makes it hold what that
    /// held: `progress` counts bytes of a mirror, or blocks of a link.
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
        let mut manifest = self.manifest.lock().await;
        let member = self.member(old)?;
        let mirror = self.mirror_of(&member);
        if let Some(mirror) = mirror {
            self.replace_side(&mut manifest, &member, &mirror, new, force).await?;
            return self.rebuild_side(&mirror, usize::from(member.side), progress).await;
        }
        let model = self.model(member.role, member.group);
        match model {
            Some(model) if member.role == Role::Link && model.columns == 1 => {
                if model.map_bytes > 0 {
                    // Said before a device is added in vain.
                    return self.remove_link(&mut manifest, &member, progress).await;
                }
                let link = LinkSpec::plain(new.clone());
                self.add_link(&mut manifest, &link, force).await?;
                self.remove_link(&mut manifest, &member, progress).await
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

    /// The new device gets its label, as a side that never was in sync; the old one is put out on
    /// record; then the manifest changes. A crash before leaves the old side, in sync or stale; a
    /// crash afterwards the new one, stale.
    async fn replace_side(
        &self,
        manifest: &mut Manifest,
        old: &Place,
        mirror: &PoolMirror,
        new: &DeviceSpec,
        force: bool,
    ) -> Result<(), PoolError> {
        let side = usize::from(old.side);
        let states = mirror.mirror.states().borrow().clone();
        let others = states.iter().enumerate().any(|(i, s)| i != side && *s == SideState::InSync);
        if !others {
            return Err(crate::device::MirrorError::LastInSync { side }.into());
        }
        let claim = self.prepare_side(manifest, old, mirror, new, force).await?;
        if matches!(states[side], SideState::InSync | SideState::Rebuilding { .. }) {
            mirror.mirror.take_out(side).await?;
        }
        let new_place = place(&self.folder, &claim);
        for entry in manifest.devices.iter_mut().filter(|entry| *entry == old) {
            *entry = new_place.clone();
        }
        manifest.write(&*self.media, &self.folder).await?;
        let gone = self.take_member(old);
        let mut seats = self.seats(manifest, vec![new_place]).await?;
        let seat = seats.pop().ok_or_else(|| invalid("the new device has gone"))?;
        let slot = seat.found?;
        mirror.mirror.replace(side, slot.extent()?)?;
        mirror.labels.replace(side, slot.clone()).await;
        let member = Member { place: seat.place, path: seat.path, slot: Some(slot) };
        for known in self.mirrors.lock().iter_mut().filter(|known| known.holds(old)) {
            known.paths[side] = member.path.clone();
        }
        self.members.lock().push(member);
        if let Some(gone) = gone {
            // Nobody lists it any more; that its label stays would only be in its next user's way.
            let freed = destroy::free(&self.env, &*self.media, gone.into(), self.sector).await;
            if let Err(error) = freed {
                tracing::warn!(%error, "the label of a replaced device was not wiped");
            }
        }
        Ok(())
    }

    /// Labels a device as another side of a mirror.
    async fn prepare_side(
        &self,
        manifest: &Manifest,
        old: &Place,
        mirror: &PoolMirror,
        new: &DeviceSpec,
        force: bool,
    ) -> Result<Claim, PoolError> {
        self.refuse_members(std::iter::once(new)).await?;
        let media = &*self.media;
        let model = self.model(mirror.role, mirror.group);
        let model = model.ok_or_else(|| invalid("no side of the mirror is there"))?;
        let (column, side) = (old.column, old.side);
        let member = format::Member { column, side, events: 0, in_sync: 0, sequence: 0, ..model };
        let mut made = Vec::new();
        let default = DATA_START + member.length;
        let devices = std::iter::once(new);
        prepare::make_files(media, devices, default, manifest.sector, &mut made).await?;
        if mirror.role == Role::Link {
            let spec = LinkSpec::plain(new.clone());
            let have =
                prepare::link_room(media, &spec, manifest.sector, force, Some(self.id)).await?;
            if have < member.length {
                let device = new.path.display().to_string();
                let (need, have) = (member.length + DATA_START, have + DATA_START);
                return Err(PoolError::TooSmall { device, need, have });
            }
        }
        let claim = Claim { path: new.path.clone(), member, at_most: false };
        prepare::check_claim(media, &claim, force).await?;
        prepare::label(&self.env, media, &claim, force).await?;
        Ok(claim)
    }

    fn take_member(&self, place: &Place) -> Option<Member> {
        let mut members = self.members.lock();
        let number = members.iter().position(|member| member.place == *place)?;
        Some(members.remove(number))
    }

    /// Makes the sides that missed writes equal to the others, one after the other: those that are
    /// there, and all of them if `only` names none. `progress` counts bytes of a mirror.
    ///
    /// # Errors
    /// [`PoolError::NoMember`] when `only` is no side of a mirror; [`PoolError::Mirror`] when it is
    /// in sync or not there, or a device fails.
    pub async fn rebuild(
        &self,
        only: Option<&Path>,
        progress: Progress<'_>,
    ) -> Result<(), PoolError> {
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

    /// Frees links that the manifest lists and the chain does not have: an `extend` or a `shrink`
    /// was cut short.
    pub(super) async fn free_leftovers(&self) -> Result<(), PoolError> {
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
            self.free_group(Role::Link, group).await?;
            manifest.devices.retain(|place| place.group != group);
            manifest.write(&*self.media, &self.folder).await?;
        }
        Ok(())
    }
}
