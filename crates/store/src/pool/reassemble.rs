//! A manifest from labels: for a volume whose `volume.toml` is lost or damaged, or names paths that its devices no longer have.
//!
//! The label of each device says to which volume it belongs and its place there; the chain's own label says which links there
//! are. So nothing is guessed: what is missing is named, and nothing is written before everything fits, and then the manifest
//! alone. The labels do not have the volume's settings and the address of a primary that it follows: these come from the
//! manifest that is there, if it can be read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_env::Env;
use uuid::Uuid;

use super::PoolError;
use super::assemble::{put_together, refuse_newer, take_seats};
use super::format::{Member, Role};
use super::label::{self, Slot};
use super::manifest::{self, Manifest, Place, Stage};
use super::media::Media;
use super::prepare::refuse_same;
use super::probe;
use super::spec::DeviceSpec;
use crate::chain::Label;
use crate::device::{Access, Overlay, kinds};

/// Which devices a lost manifest is made again from.
#[derive(Clone, Debug)]
pub struct Reassembly {
    /// All devices of the volume, in any order.
    pub devices: Vec<PathBuf>,
    /// Whether sides of mirrors may be missing, as long as each mirror has one that is in sync.
    pub degraded: bool,
}

/// A manifest that was made again.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Reassembled {
    /// The volume's name.
    pub name: String,
    /// Its identity.
    pub volume: Uuid,
    /// Its devices, with those that are missing.
    pub devices: usize,
    /// Sides of mirrors that are missing.
    pub missing: Vec<String>,
    /// Devices that carry a label of the volume and are no part of it: a change was interrupted.
    pub left_out: Vec<PathBuf>,
    /// Whether it follows another volume, whose address is lost.
    pub lacks_primary: bool,
    /// Whether its settings are lost, if it had any.
    pub lacks_settings: bool,
}

/// A device with the extents that its label has.
struct Labelled {
    path: PathBuf,
    members: Vec<Member>,
}

/// Makes the manifest in `folder` again from the labels of a volume's devices.
///
/// # Errors
/// A [`PoolError`] that says which devices are missing, or of which volumes they are; nothing was changed then.
pub async fn reassemble_on(
    env: &Env,
    media: &dyn Media,
    folder: &Path,
    how: &Reassembly,
) -> Result<Reassembled, PoolError> {
    let old = OldManifest::read(media, folder).await?;
    let devices = read_labels(media, &how.devices).await?;
    let volume = volume_of(&devices, old.volume())?;
    let mut manifest = old.renewed(folder, volume, &devices)?;
    let Layout { places, missing, has_map } = layout(folder, volume, &devices)?;
    if !has_map || !how.degraded && !missing.is_empty() {
        return Err(incomplete(&manifest, missing));
    }
    manifest.devices = places;
    let label = chain_label(env, media, folder, &manifest).await?;
    let lacking = lacking_links(&label, &manifest.devices);
    if !lacking.is_empty() {
        return Err(incomplete(&manifest, lacking));
    }
    let left_out = leave_out(&label, &mut manifest);
    if let OldManifest::Damaged(text) = &old {
        let kept = folder.join(OLD);
        media.write_text(&kept, text).await.map_err(|error| PoolError::io(&kept, error))?;
    }
    media.make_folder(folder).await.map_err(|error| PoolError::io(folder, error))?;
    manifest.write(media, folder).await?;
    Ok(Reassembled {
        name: manifest.name,
        volume,
        devices: manifest.devices.len(),
        missing,
        left_out: left_out.iter().map(|path| manifest::from_stored(folder, path)).collect(),
        lacks_primary: label.follows && manifest.follows.is_none(),
        lacks_settings: !matches!(old, OldManifest::Whole(_)),
    })
}

/// The name of a manifest that could not be read, beside the new one.
const OLD: &str = "volume.toml.old";

/// What is in the manifest's place.
enum OldManifest {
    None,
    /// The text of a file that is no manifest.
    Damaged(String),
    Whole(Box<Manifest>),
}

impl OldManifest {
    async fn read(media: &dyn Media, folder: &Path) -> Result<OldManifest, PoolError> {
        let path = folder.join(manifest::FILE);
        match Manifest::read(media, folder).await {
            Ok(manifest) => Ok(OldManifest::Whole(Box::new(manifest))),
            Err(PoolError::NoVolume { .. }) => Ok(OldManifest::None),
            Err(PoolError::Manifest { .. }) => {
                let text = media.read_text(&path).await;
                let text = text.map_err(|error| PoolError::io(&path, error))?;
                Ok(OldManifest::Damaged(text.unwrap_or_default()))
            }
            // What is not text was no manifest either.
            Err(PoolError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::InvalidData =>
            {
                Ok(OldManifest::Damaged(String::new()))
            }
            Err(error) => Err(error),
        }
    }

    fn volume(&self) -> Option<Uuid> {
        match self {
            OldManifest::Whole(manifest) => Some(manifest.volume),
            OldManifest::None | OldManifest::Damaged(_) => None,
        }
    }

    /// The manifest of `volume` without devices, with all that the old one knows.
    fn renewed(
        &self,
        folder: &Path,
        volume: Uuid,
        devices: &[Labelled],
    ) -> Result<Manifest, PoolError> {
        if let OldManifest::Whole(old) = self {
            return match old.stage {
                _ if old.volume != volume => Err(PoolError::Exists { folder: folder.to_owned() }),
                Stage::Unfinished => Err(PoolError::Unfinished { folder: folder.to_owned() }),
                Stage::Ready => Ok(Manifest { devices: Vec::new(), ..(**old).clone() }),
            };
        }
        let model = devices.iter().flat_map(|it| &it.members).find(|it| it.volume == volume);
        let (name, sector) = model.map_or(("", 0), |it| (&*it.name, it.sector));
        let sector = Some(sector).filter(|sector| *sector != 0);
        Ok(Manifest { stage: Stage::Ready, ..Manifest::new(volume, name, sector) })
    }
}

/// Reads the labels of devices without a lock: they are locked when it is known which parts they are.
async fn read_labels(media: &dyn Media, paths: &[PathBuf]) -> Result<Vec<Labelled>, PoolError> {
    let specs: Vec<DeviceSpec> = paths.iter().map(DeviceSpec::new).collect();
    refuse_same(media, specs.iter()).await?;
    let mut devices = Vec::new();
    for path in paths {
        let path = kinds::absolute(path).map_err(|error| PoolError::io(path, error))?;
        let device = media.open(&path, Access::Reading, None).await?.device;
        let name = device.name();
        match label::find(&*device).await? {
            Some(label) if label.damaged > 0 => return Err(PoolError::Damaged { device: name }),
            Some(label) if !label.members.is_empty() => {
                let members = label.members.into_iter().map(|(_, member)| member).collect();
                devices.push(Labelled { path, members });
            }
            _ => {
                let what = probe::foreign(&*device).await?.unwrap_or("no label of a volume");
                return Err(PoolError::NoPart { device: name, what });
            }
        }
    }
    Ok(devices)
}

/// The one volume that all devices belong to. Of several, the one whose manifest is there.
fn volume_of(devices: &[Labelled], there: Option<Uuid>) -> Result<Uuid, PoolError> {
    let owns =
        |device: &Labelled, volume: Uuid| device.members.iter().any(|it| it.volume == volume);
    let in_all = |volume: &Uuid| devices.iter().all(|device| owns(device, *volume));
    let mut volumes: Vec<Uuid> =
        devices.iter().flat_map(|it| &it.members).map(|it| it.volume).filter(in_all).collect();
    volumes.sort_unstable();
    volumes.dedup();
    match (&volumes[..], there) {
        ([only], _) => Ok(*only),
        ([_, ..], Some(there)) if volumes.contains(&there) => Ok(there),
        _ => Err(PoolError::SeveralVolumes { devices: devices.iter().map(in_words).collect() }),
    }
}

/// A device, and the volumes that it belongs to.
fn in_words(device: &Labelled) -> String {
    let mut volumes: Vec<String> = Vec::new();
    for Member { name, volume, .. } in &device.members {
        let volume = format!("{name} ({volume})");
        if !volumes.contains(&volume) {
            volumes.push(volume);
        }
    }
    format!("{}: {}", device.path.display(), volumes.join(", "))
}

/// The parts of a volume, by its labels.
struct Layout {
    /// The place of each device, with one for each that is missing.
    places: Vec<Place>,
    /// What is missing, in words.
    missing: Vec<String>,
    /// Whether a device has the map.
    has_map: bool,
}

/// The extents of a volume, each with the path of its device.
fn extents(volume: Uuid, devices: &[Labelled]) -> Result<Vec<(&Path, &Member)>, PoolError> {
    let mut found: Vec<(&Path, &Member)> = Vec::new();
    for device in devices {
        let members = device.members.iter().filter(|member| member.volume == volume);
        for member in members {
            let part = |it: &Member| (it.role, it.group, it.column, it.side);
            if let Some((first, _)) = found.iter().find(|(_, it)| part(it) == part(member)) {
                return Err(PoolError::SamePart {
                    first: first.display().to_string(),
                    second: device.path.display().to_string(),
                    part: member.role.name(),
                });
            }
            found.push((&device.path, member));
        }
    }
    Ok(found)
}

fn layout(folder: &Path, volume: Uuid, devices: &[Labelled]) -> Result<Layout, PoolError> {
    let found = extents(volume, devices)?;
    let place = |path: PathBuf, it: &Member| Place {
        path,
        role: it.role,
        group: it.group,
        column: it.column,
        side: it.side,
        replaces: None,
    };
    let mut places: Vec<Place> =
        found.iter().map(|(path, it)| place(manifest::to_stored(folder, path), it)).collect();
    let mut missing = Vec::new();
    let mut groups: Vec<(Role, Uuid)> = Vec::new();
    for (path, model) in &found {
        if groups.contains(&(model.role, model.group)) {
            continue;
        }
        groups.push((model.role, model.group));
        let all =
            (0..model.columns).flat_map(|column| (0..model.sides).map(move |side| (column, side)));
        for (column, side) in all {
            let is_it = |it: &Member| {
                (it.role, it.group, it.column, it.side) == (model.role, model.group, column, side)
            };
            if !found.iter().any(|(_, it)| is_it(it)) {
                let absent = Member { column, side, ..(*model).clone() };
                missing.push(lacking(path, &absent));
                // A name for `replace`, of nothing that exists.
                let name = format!("missing-{}-{column}-{side}", model.group.simple());
                places.push(place(PathBuf::from(name), &absent));
            }
        }
    }
    let has_map = |(_, it): &(&Path, &Member)| it.role == Role::Map || it.map_bytes > 0;
    let has_map = found.iter().any(has_map);
    if !has_map {
        missing.push("the map, on a device of its own or on the first link".to_owned());
    }
    Ok(Layout { places, missing, has_map })
}

/// A missing device of a group, in words, by another one.
fn lacking(of: &Path, it: &Member) -> String {
    let (of, role) = (of.display(), it.role.name());
    let side = format!("side {} of {} of the {role}", it.side + 1, it.sides);
    match (it.columns, it.sides) {
        (1, _) => format!("{side} on {of}"),
        (columns, 1) => format!("column {} of {columns} of the {role} on {of}", it.column + 1),
        (columns, _) => format!("{side} on {of}, in column {} of {columns}", it.column + 1),
    }
}

fn incomplete(manifest: &Manifest, missing: Vec<String>) -> PoolError {
    let (name, volume) = (manifest.name.clone(), manifest.volume);
    PoolError::Incomplete { name, volume, missing }
}

/// The chain's label. The devices are locked and looked at, and nothing is written to them.
async fn chain_label(
    env: &Env,
    media: &dyn Media,
    folder: &Path,
    manifest: &Manifest,
) -> Result<Label, PoolError> {
    let mut seats = take_seats(env, media, folder, manifest).await?;
    refuse_newer(&seats)?;
    for slot in seats.iter_mut().filter_map(|seat| seat.found.as_mut().ok()) {
        // Assembling mirrors records which sides are missing.
        *slot = Slot { device: Arc::new(Overlay::new(slot.device.clone())), ..slot.clone() };
    }
    let (put, absent) = put_together(env, &seats, false).await?;
    if let Some((_, error)) = absent.into_iter().next() {
        return Err(error);
    }
    let label = Label::read(&*put.parts.map).await?;
    match label.volume == manifest.volume {
        true => Ok(label),
        false => Err(crate::chain::ChainError::NoLabel.into()),
    }
}

/// The links of the chain that no device belongs to, in words.
fn lacking_links(label: &Label, places: &[Place]) -> Vec<String> {
    let all = label.links.len();
    let numbered = label.links.iter().enumerate();
    let lacks =
        numbered.filter(|(_, link)| !places.iter().any(|place| place.group.as_bytes() == &link.id));
    lacks
        .map(|(number, link)| {
            format!("link {number} ({}), one of {all} links", Uuid::from_bytes(link.id))
        })
        .collect()
}

/// Takes the devices of links that the chain does not have out of the manifest, since `open` would free them, and brings the
/// others into the order of the chain; returns the paths of the former.
fn leave_out(label: &Label, manifest: &mut Manifest) -> Vec<PathBuf> {
    let number = |place: &Place| {
        let is_it = |link: &crate::chain::format::LinkRecord| &link.id == place.group.as_bytes();
        label.links.iter().position(is_it)
    };
    let is_left_out = |place: &mut Place| place.role == Role::Link && number(place).is_none();
    let left_out = manifest.devices.extract_if(.., is_left_out).map(|place| place.path).collect();
    manifest.devices.sort_by_key(|it| (it.role, number(it), it.column, it.side));
    left_out
}
