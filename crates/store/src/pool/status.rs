//! A volume's status.

use std::path::PathBuf;

use uuid::Uuid;

use super::format::Role;
use super::manifest::Settings;
use crate::chain::Status;
use crate::device::SideState;

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// It serves.
    Online,
    /// It is being rebuilt from its mirror's other sides.
    Rebuilding {
        /// Bytes that are rebuilt.
        done: u64,
        /// The mirror's size in bytes.
        total: u64,
    },
    /// It missed writes; rebuild it.
    Stale,
    /// A request failed on it; replace or rebuild it.
    Failed,
    /// It is missing; attach or replace it.
    Missing,
}

impl From<SideState> for MemberState {
    fn from(state: SideState) -> MemberState {
        match state {
            SideState::InSync => MemberState::Online,
            SideState::Rebuilding { done, total } => MemberState::Rebuilding { done, total },
            SideState::Stale => MemberState::Stale,
            SideState::Failed => MemberState::Failed,
            SideState::Missing => MemberState::Missing,
        }
    }
}

/// The status of one member.
#[derive(Clone, Debug, serde::Serialize)]
pub struct MemberStatus {
    /// Its path.
    pub path: PathBuf,
    /// Its role.
    pub role: Role,
    /// The link, or other group, that it belongs to.
    pub group: Uuid,
    /// Its number in a stripe.
    pub column: u8,
    /// Its number in a mirror.
    pub side: u8,
    /// Its state.
    pub state: MemberState,
    /// Bytes of its extent; 0 when it is missing.
    pub bytes: u64,
}

/// The status of a volume.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub volume: Uuid,
    /// Its size in bytes.
    pub size: u64,
    /// The settings for the next opening.
    pub settings: Settings,
    /// Its chain.
    pub chain: Status,
    /// Its devices.
    pub members: Vec<MemberStatus>,
    /// Warnings from the opening.
    pub warnings: Vec<String>,
}
