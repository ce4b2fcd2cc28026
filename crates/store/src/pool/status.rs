//! A volume's state in numbers.

use std::path::PathBuf;

use uuid::Uuid;

use super::format::Role;
use super::manifest::Settings;
use crate::chain::Status;
use crate::device::SideState;

/// How a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// It serves.
    Online,
    /// It is being made equal to its mirror's other sides.
    Rebuilding {
        /// Bytes that are equal.
        done: u64,
        /// Bytes of the mirror.
        total: u64,
    },
    /// It missed writes; rebuild it.
    Stale,
    /// A request failed on it; replace or rebuild it.
    Failed,
    /// It is not there; attach or replace it.
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

/// One member in numbers.
#[derive(Clone, Debug, serde::Serialize)]
pub struct MemberStatus {
    /// Where it is.
    pub path: PathBuf,
    /// What it is for.
    pub role: Role,
    /// The link, or other group, that it is in.
    pub group: Uuid,
    /// Its number in a stripe.
    pub column: u8,
    /// Its number in a mirror.
    pub side: u8,
    /// How it is doing.
    pub state: MemberState,
    /// Bytes of its extent; 0 when it is missing.
    pub bytes: u64,
}

/// A volume in numbers.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub volume: Uuid,
    /// Its size in bytes.
    pub size: u64,
    /// How it is opened the next time.
    pub settings: Settings,
    /// Its chain.
    pub chain: Status,
    /// Its devices.
    pub members: Vec<MemberStatus>,
    /// What was noticed as it was opened.
    pub warnings: Vec<String>,
}
