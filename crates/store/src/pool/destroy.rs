//! Destroying a volume: the manifest is marked unfinished, then labels are wiped, then the manifest is
//! removed. A crash in between leaves an unfinished volume, which can be destroyed again.

use std::path::Path;

use thalweg_env::Env;

use super::PoolError;
use super::assemble::{Seat, take_all, take_seats};
use super::format::{Role, Sharing};
use super::label;
use super::manifest::{Manifest, Stage};
use super::media::Media;
use super::prepare::lock_directory;

/// Wipes the labels of the volume in `folder`, and removes its manifest. Files are left where they are.
/// Missing devices are skipped, with a warning.
///
/// # Errors
/// [`crate::device::DeviceError::Locked`] while the volume is open.
pub async fn destroy_on(env: &Env, media: &dyn Media, folder: &Path) -> Result<(), PoolError> {
    let (mut manifest, mut seats) = take_all(env, media, folder).await?;
    let left = Manifest { devices: manifest.leftovers.clone(), ..manifest.clone() };
    seats.extend(take_seats(env, media, folder, &left).await?);
    manifest.stage = Stage::Unfinished;
    manifest.write(media, folder).await?;
    for seat in seats {
        free(env, media, seat, manifest.sector).await?;
    }
    Manifest::remove(media, folder).await
}

/// Frees a member's slot, and wipes the label of a device that then has no owner.
pub(super) async fn free(
    env: &Env,
    media: &dyn Media,
    seat: Seat,
    sector: Option<u32>,
) -> Result<(), PoolError> {
    let slot = match seat.found {
        Ok(slot) => slot,
        Err(error) => {
            tracing::warn!(path = %seat.path.display(), %error, "not wiped");
            return Ok(());
        }
    };
    if seat.place.role == Role::Link {
        slot.free().await?;
        label::wipe(&slot.device).await?;
        return Ok(());
    }
    let (opened, label) = lock_directory(env, media, &seat.path, sector).await?;
    slot.free().await?;
    let others = label?.is_some_and(|label| {
        label.header.sharing != Sharing::Shared
            || label.damaged > 0
            || label.members.iter().any(|(number, _)| *number != slot.number)
    });
    if !others {
        label::wipe(&opened.device).await?;
    }
    Ok(())
}
