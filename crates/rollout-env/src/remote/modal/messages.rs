//! The messages of Modal's protocol that are used here, with the field numbers of its client 1.6.

use std::collections::HashMap;

use prost::Message;

/// Creates an object if it does not exist.
pub(super) const CREATE_IF_MISSING: i32 = 1;
/// Creates an object that belongs to an app.
pub(super) const OWNED_BY_APP: i32 = 4;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthTokenGetResponse {
    #[prost(string, tag = "1")]
    pub(super) token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AppGetOrCreateRequest {
    #[prost(string, tag = "1")]
    pub(super) app_name: String,
    #[prost(string, tag = "2")]
    pub(super) environment_name: String,
    #[prost(int32, tag = "3")]
    pub(super) object_creation_type: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AppGetOrCreateResponse {
    #[prost(string, tag = "1")]
    pub(super) app_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EnvironmentGetOrCreateRequest {
    #[prost(string, tag = "1")]
    pub(super) deployment_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EnvironmentGetOrCreateResponse {
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<EnvironmentMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EnvironmentMetadata {
    #[prost(message, optional, tag = "2")]
    pub(super) settings: Option<EnvironmentSettings>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EnvironmentSettings {
    #[prost(string, tag = "1")]
    pub(super) image_builder_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecretGetOrCreateRequest {
    #[prost(string, tag = "1")]
    pub(super) deployment_name: String,
    #[prost(string, tag = "3")]
    pub(super) environment_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecretGetOrCreateResponse {
    #[prost(string, tag = "1")]
    pub(super) secret_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<SecretMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SecretMetadata {
    #[prost(string, repeated, tag = "3")]
    pub(super) keys: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountBatchedCheckExistenceRequest {
    #[prost(string, repeated, tag = "1")]
    pub(super) sha256_hex_hashes: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountBatchedCheckExistenceResponse {
    #[prost(string, repeated, tag = "1")]
    pub(super) missing_sha256_hex_hashes: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountPutFileRequest {
    #[prost(string, tag = "2")]
    pub(super) sha256_hex: String,
    #[prost(oneof = "MountData", tags = "3, 5")]
    pub(super) data: Option<MountData>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum MountData {
    #[prost(bytes, tag = "3")]
    Content(Vec<u8>),
    #[prost(string, tag = "5")]
    BlobId(String),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountPutFileResponse {
    #[prost(bool, tag = "2")]
    pub(super) exists: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountGetOrCreateRequest {
    #[prost(int32, tag = "4")]
    pub(super) object_creation_type: i32,
    #[prost(message, repeated, tag = "5")]
    pub(super) files: Vec<MountFile>,
    #[prost(string, tag = "6")]
    pub(super) app_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountFile {
    #[prost(string, tag = "1")]
    pub(super) filename: String,
    #[prost(string, tag = "3")]
    pub(super) sha256_hex: String,
    #[prost(uint32, optional, tag = "5")]
    pub(super) mode: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MountGetOrCreateResponse {
    #[prost(string, tag = "1")]
    pub(super) mount_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BlobCreateRequest {
    #[prost(string, tag = "1")]
    pub(super) content_md5: String,
    #[prost(string, tag = "2")]
    pub(super) content_sha256_base64: String,
    #[prost(int64, tag = "3")]
    pub(super) content_length: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BlobCreateResponse {
    #[prost(string, tag = "1")]
    pub(super) upload_url: String,
    #[prost(string, tag = "2")]
    pub(super) blob_id: String,
    #[prost(string, repeated, tag = "4")]
    pub(super) blob_ids: Vec<String>,
    #[prost(message, optional, tag = "5")]
    pub(super) upload_urls: Option<UploadUrlList>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct UploadUrlList {
    #[prost(string, repeated, tag = "1")]
    pub(super) items: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Image {
    #[prost(message, repeated, tag = "5")]
    pub(super) base_images: Vec<BaseImage>,
    #[prost(string, repeated, tag = "6")]
    pub(super) dockerfile_commands: Vec<String>,
    #[prost(string, tag = "15")]
    pub(super) context_mount_id: String,
    #[prost(message, optional, tag = "17")]
    pub(super) image_registry_config: Option<ImageRegistryConfig>,
}

/// An image that the commands know by a name.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BaseImage {
    #[prost(string, tag = "1")]
    pub(super) image_id: String,
    #[prost(string, tag = "2")]
    pub(super) docker_tag: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageRegistryConfig {
    #[prost(int32, tag = "1")]
    pub(super) registry_auth_type: i32,
    #[prost(string, tag = "2")]
    pub(super) secret_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageGetOrCreateRequest {
    #[prost(message, optional, tag = "2")]
    pub(super) image: Option<Image>,
    #[prost(string, tag = "4")]
    pub(super) app_id: String,
    #[prost(bool, tag = "7")]
    pub(super) force_build: bool,
    #[prost(string, tag = "9")]
    pub(super) builder_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageGetOrCreateResponse {
    #[prost(string, tag = "1")]
    pub(super) image_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) result: Option<GenericResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageJoinStreamingRequest {
    #[prost(string, tag = "1")]
    pub(super) image_id: String,
    #[prost(float, tag = "2")]
    pub(super) timeout: f32,
    #[prost(string, tag = "3")]
    pub(super) last_entry_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageJoinStreamingResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) result: Option<GenericResult>,
    #[prost(message, repeated, tag = "2")]
    pub(super) task_logs: Vec<TaskLogs>,
    #[prost(string, tag = "3")]
    pub(super) entry_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskLogs {
    #[prost(string, tag = "1")]
    pub(super) data: String,
}

/// How something ended. The numbers of `status` are in [`ResultStatus`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct GenericResult {
    #[prost(enumeration = "ResultStatus", tag = "1")]
    pub(super) status: i32,
    #[prost(string, tag = "2")]
    pub(super) exception: String,
    #[prost(int32, tag = "3")]
    pub(super) exitcode: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ResultStatus {
    Unspecified = 0,
    Success = 1,
    Failure = 2,
    Terminated = 3,
    Timeout = 4,
    InitFailure = 5,
    InternalFailure = 6,
    IdleTimeout = 7,
    MemoryEviction = 8,
    MemoryThrashing = 9,
    OutOfMemory = 10,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxCreateRequest {
    #[prost(string, tag = "1")]
    pub(super) app_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) definition: Option<Sandbox>,
    #[prost(message, repeated, tag = "4")]
    pub(super) tags: Vec<SandboxTag>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxCreateResponse {
    #[prost(string, tag = "1")]
    pub(super) sandbox_id: String,
    #[prost(string, tag = "3")]
    pub(super) task_id: String,
    #[prost(message, optional, tag = "5")]
    pub(super) command_router_access: Option<RouterAccess>,
    #[prost(string, tag = "6")]
    pub(super) sandbox_token: String,
}

/// How to reach the machine of a sandbox. Two answers have this form.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RouterAccess {
    #[prost(string, tag = "1")]
    pub(super) jwt: String,
    #[prost(string, tag = "2")]
    pub(super) url: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sandbox {
    #[prost(string, repeated, tag = "1")]
    pub(super) entrypoint_args: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) image_id: String,
    #[prost(message, optional, tag = "5")]
    pub(super) resources: Option<Resources>,
    #[prost(uint32, tag = "7")]
    pub(super) timeout_secs: u32,
    #[prost(message, optional, tag = "17")]
    pub(super) scheduler_placement: Option<SchedulerPlacement>,
    #[prost(message, optional, tag = "22")]
    pub(super) network_access: Option<NetworkAccess>,
    #[prost(string, tag = "26")]
    pub(super) cloud_provider_str: String,
    #[prost(string, optional, tag = "28")]
    pub(super) runtime: Option<String>,
    #[prost(string, optional, tag = "30")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resources {
    #[prost(uint32, tag = "2")]
    pub(super) memory_mb: u32,
    #[prost(uint32, tag = "3")]
    pub(super) milli_cpu: u32,
    #[prost(uint32, tag = "5")]
    pub(super) memory_mb_max: u32,
    #[prost(uint32, tag = "7")]
    pub(super) milli_cpu_max: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedulerPlacement {
    #[prost(string, repeated, tag = "4")]
    pub(super) regions: Vec<String>,
}

/// The outgoing network.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NetworkAccess {
    #[prost(enumeration = "NetworkKind", tag = "1")]
    pub(super) kind: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum NetworkKind {
    Unspecified = 0,
    Open = 1,
    Blocked = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxTag {
    #[prost(string, tag = "1")]
    pub(super) tag_name: String,
    #[prost(string, tag = "2")]
    pub(super) tag_value: String,
}

/// Tags of labels, sorted by name.
pub(super) fn tags(labels: &HashMap<String, String>) -> Vec<SandboxTag> {
    let mut tags: Vec<SandboxTag> = labels
        .iter()
        .map(|(name, value)| SandboxTag { tag_name: name.clone(), tag_value: value.clone() })
        .collect();
    tags.sort_by(|a, b| a.tag_name.cmp(&b.tag_name));
    tags
}

/// The labels of tags.
pub(super) fn labels(tags: Vec<SandboxTag>) -> HashMap<String, String> {
    tags.into_iter().map(|tag| (tag.tag_name, tag.tag_value)).collect()
}

/// The request of calls that only name a sandbox.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxRequest {
    #[prost(string, tag = "1")]
    pub(super) sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxWaitRequest {
    #[prost(string, tag = "1")]
    pub(super) sandbox_id: String,
    #[prost(float, tag = "2")]
    pub(super) timeout: f32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxWaitResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) result: Option<GenericResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxGetTaskIdResponse {
    #[prost(string, optional, tag = "1")]
    pub(super) task_id: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxTagsSetRequest {
    #[prost(string, tag = "2")]
    pub(super) sandbox_id: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) tags: Vec<SandboxTag>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxTagsGetResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) tags: Vec<SandboxTag>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxListRequest {
    #[prost(string, tag = "1")]
    pub(super) app_id: String,
    #[prost(double, tag = "2")]
    pub(super) before_timestamp: f64,
    #[prost(message, repeated, tag = "5")]
    pub(super) tags: Vec<SandboxTag>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxListResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) sandboxes: Vec<SandboxInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxInfo {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(double, tag = "3")]
    pub(super) created_at: f64,
    #[prost(message, repeated, tag = "6")]
    pub(super) tags: Vec<SandboxTag>,
}

/// The details of an error.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    pub(super) details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcRetryPolicy {
    #[prost(float, tag = "1")]
    pub(super) retry_after_secs: f32,
}

/// Sends what a process writes to the client.
pub(super) const PIPE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskExecStartRequest {
    #[prost(string, tag = "1")]
    pub(super) task_id: String,
    #[prost(string, tag = "2")]
    pub(super) exec_id: String,
    #[prost(string, repeated, tag = "3")]
    pub(super) command_args: Vec<String>,
    #[prost(int32, tag = "4")]
    pub(super) stdout_config: i32,
    #[prost(string, optional, tag = "7")]
    pub(super) workdir: Option<String>,
}

/// Asks for the output from a position on. The default file is the standard output.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskExecStdioReadRequest {
    #[prost(string, tag = "1")]
    pub(super) task_id: String,
    #[prost(string, tag = "2")]
    pub(super) exec_id: String,
    #[prost(uint64, tag = "3")]
    pub(super) offset: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskExecStdioReadResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskExecStdinWriteRequest {
    #[prost(string, tag = "1")]
    pub(super) task_id: String,
    #[prost(string, tag = "2")]
    pub(super) exec_id: String,
    #[prost(uint64, tag = "3")]
    pub(super) offset: u64,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) data: Vec<u8>,
    #[prost(bool, tag = "5")]
    pub(super) eof: bool,
}
