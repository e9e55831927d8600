//! Model servers that are known by name: `anthropic/claude-sonnet-4-5` is a model of a server with a well-known address.

use rollout_gateway::Dialect::{self, Chat, Gemini, Messages, Responses};

/// A model server that is known by name.
pub struct KnownServer {
    /// What stands before the slash.
    pub name: &'static str,
    /// The variable with its key, as job files write it.
    pub api_key: &'static str,
    /// Where it answers, by protocol, the best one first. Variables are as job files write them.
    pub urls: &'static [(Dialect, &'static str)],
}

/// All of them.
pub const KNOWN_SERVERS: [KnownServer; 17] = [
    KnownServer {
        name: "anthropic",
        api_key: "${ANTHROPIC_API_KEY}",
        urls: &[(Messages, "${ANTHROPIC_BASE_URL:-https://api.anthropic.com}")],
    },
    KnownServer {
        name: "openai",
        api_key: "${OPENAI_API_KEY}",
        urls: &[
            (Responses, "${OPENAI_BASE_URL:-https://api.openai.com/v1}"),
            (Chat, "${OPENAI_BASE_URL:-https://api.openai.com/v1}"),
        ],
    },
    KnownServer { name: "google", api_key: "${GEMINI_API_KEY}", urls: GOOGLE },
    KnownServer { name: "gemini", api_key: "${GEMINI_API_KEY}", urls: GOOGLE },
    KnownServer {
        name: "openrouter",
        api_key: "${OPENROUTER_API_KEY}",
        urls: &[(Chat, "https://openrouter.ai/api/v1")],
    },
    KnownServer {
        name: "together",
        api_key: "${TOGETHER_API_KEY}",
        urls: &[(Chat, "https://api.together.xyz/v1")],
    },
    KnownServer {
        name: "groq",
        api_key: "${GROQ_API_KEY}",
        urls: &[(Chat, "https://api.groq.com/openai/v1")],
    },
    KnownServer {
        name: "deepseek",
        api_key: "${DEEPSEEK_API_KEY}",
        urls: &[(Chat, "https://api.deepseek.com/v1"), (Messages, "https://api.deepseek.com/anthropic/v1")],
    },
    KnownServer {
        name: "mistral",
        api_key: "${MISTRAL_API_KEY}",
        urls: &[(Chat, "https://api.mistral.ai/v1")],
    },
    KnownServer {
        name: "xai",
        api_key: "${XAI_API_KEY}",
        urls: &[(Chat, "https://api.x.ai/v1"), (Responses, "https://api.x.ai/v1")],
    },
    KnownServer {
        name: "moonshot",
        api_key: "${MOONSHOT_API_KEY}",
        urls: &[(Chat, "https://api.moonshot.ai/v1"), (Messages, "https://api.moonshot.ai/anthropic/v1")],
    },
    KnownServer {
        name: "fireworks",
        api_key: "${FIREWORKS_API_KEY}",
        urls: &[(Chat, "https://api.fireworks.ai/inference/v1")],
    },
    KnownServer {
        name: "cerebras",
        api_key: "${CEREBRAS_API_KEY}",
        urls: &[(Chat, "https://api.cerebras.ai/v1")],
    },
    KnownServer {
        name: "nvidia",
        api_key: "${NVIDIA_API_KEY}",
        urls: &[(Chat, "https://integrate.api.nvidia.com/v1")],
    },
    KnownServer {
        name: "huggingface",
        api_key: "${HF_TOKEN}",
        urls: &[(Chat, "https://router.huggingface.co/v1")],
    },
    KnownServer {
        name: "vllm",
        api_key: "${VLLM_API_KEY:-}",
        urls: &[(Chat, "${VLLM_BASE_URL:-http://127.0.0.1:8000/v1}")],
    },
    KnownServer {
        name: "ollama",
        api_key: "${OLLAMA_API_KEY:-}",
        urls: &[(Chat, "${OLLAMA_BASE_URL:-http://127.0.0.1:11434/v1}")],
    },
];

const GOOGLE: &[(Dialect, &str)] = &[
    (Gemini, "${GEMINI_BASE_URL:-https://generativelanguage.googleapis.com/v1beta}"),
    (Chat, "https://generativelanguage.googleapis.com/v1beta/openai"),
];

impl KnownServer {
    /// The server of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KNOWN_SERVERS.iter().find(|server| server.name == name)
    }

    /// The protocol and the address for a client that speaks these, the best one first: the same protocol if the server
    /// has it, because then nothing is translated.
    pub(super) fn url_for(&self, spoken: &[Dialect]) -> (Dialect, &'static str) {
        let same = spoken.iter().find_map(|dialect| self.urls.iter().find(|(other, _)| other == dialect));
        *same.unwrap_or(&self.urls[0])
    }
}
