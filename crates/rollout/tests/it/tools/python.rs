//! Tools that are Python functions.

use std::{sync::Arc, time::Duration};

use rollout::model::{
    Content, PythonFunction, PythonWorker,
    tool::{self, Tool, ToolFailure},
};
use serde_json::{Value, json};

use super::call;

const TOOLS: &str = r#"
from typing import Annotated, Literal, Optional

def lookup(word: str, limit: int = 3, kinds: Optional[list[str]] = None, *, order: Literal["up", "down"] = "up"):
    """Looks a word up.

    In all books.

    Args:
        word (str): What to look for,
            in lower case.
        limit: The most entries.

    Returns:
        Entries.
    """
    return {"word": word, "limit": limit, "order": order}

def add(a: Annotated[float, "The first."], b):
    return a + b

async def parts():
    return [{"type": "text", "text": "here"}]

def nothing():
    print("but this is printed")

def large():
    return "x" * (9 << 20)

class Odd:
    def __str__(self):
        return "odd"

def odd():
    return Odd()
"#;

async fn made(function: &str) -> (Arc<dyn Tool>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tools.py"), TOOLS).unwrap();
    let worker = PythonWorker::new("python3", dir.path());
    let function = PythonFunction { file: "tools.py".into(), function: function.to_owned() };
    (tool::python(&worker, function, Duration::from_secs(60)).await.unwrap(), dir)
}

async fn result(function: &str, arguments: Value) -> Result<Content, ToolFailure> {
    call(&made(function).await.0, arguments).await
}

#[tokio::test]
async fn a_function_is_described_by_its_signature_and_its_docstring() {
    let (lookup, _dir) = made("lookup").await;
    insta::assert_json_snapshot!(lookup.def(), @r#"
    {
      "name": "lookup",
      "description": "Looks a word up.\n\nIn all books.",
      "parameters": {
        "type": "object",
        "properties": {
          "word": {
            "type": "string",
            "description": "What to look for, in lower case."
          },
          "limit": {
            "type": "integer",
            "default": 3,
            "description": "The most entries."
          },
          "kinds": {
            "anyOf": [
              {
                "type": "array",
                "items": {
                  "type": "string"
                }
              },
              {
                "type": "null"
              }
            ]
          },
          "order": {
            "enum": [
              "up",
              "down"
            ],
            "default": "up"
          }
        },
        "required": [
          "word"
        ],
        "additionalProperties": false
      }
    }
    "#);
    let (add, _dir) = made("add").await;
    assert_eq!(
        add.def().parameters["properties"],
        json!({"a": {"type": "number", "description": "The first."}, "b": {}})
    );
}

#[tokio::test]
async fn the_model_gets_the_return_value_of_a_function() {
    let found = result("lookup", json!({"word": "é", "order": "down"})).await.unwrap();
    assert_eq!(found, Content::Text(r#"{"word":"é","limit":3,"order":"down"}"#.to_owned()));
    assert_eq!(result("add", json!({"a": 1, "b": 2})).await.unwrap(), Content::Text("3".to_owned()));
    assert!(matches!(result("parts", json!({})).await.unwrap(), Content::Parts(parts) if parts.len() == 1));
    assert_eq!(result("nothing", json!({})).await.unwrap(), Content::Text(String::new()));
    assert_eq!(result("odd", json!({})).await.unwrap(), Content::Text("odd".to_owned()));
}

#[tokio::test]
async fn an_exception_is_a_failure_of_the_tool_under_its_own_name() {
    let failure = result("add", json!({"a": 1, "b": "x"})).await.unwrap_err();
    assert_eq!(failure.name, "TypeError");
    assert!(failure.message.starts_with("unsupported operand type"), "{failure}");
    let failure = result("lookup", json!({"limit": 1})).await.unwrap_err();
    assert!(failure.message.contains("missing 1 required positional argument: 'word'"), "{failure}");
    let failure = result("large", json!({})).await.unwrap_err();
    assert_eq!(failure, ToolFailure::new("ValueError", "it returned more than 8388608 bytes"));
}
