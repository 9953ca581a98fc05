"""What we use of verl's agent loop, of its chat tokenisation and of what rollout servers return."""

from __future__ import annotations

from verl_hier.compat.seams.inspection import exists, fields, reads, takes
from verl_hier.compat.seams.seam import seam

_TOOL_LOOP = "verl.experimental.agent_loop.tool_agent_loop"
_CHAT = "verl.utils.tokenizer.continuous_token:ContinuousTokenBuilder"
_WORKER = "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ"

ROLLOUT = (
    seam(
        "agent_loop_worker",
        _WORKER,
        "our rollout runs inside verl's worker; it is a Ray actor class that has to be unwrapped to be extended",
        reads("verl.trainer.ppo.v1.agent_loop_tq", "@ray.remote\nclass AgentLoopWorkerTQ(AgentLoopWorker)"),
        removal="when the worker class is a setting, or a plain class wrapped by its manager",
    ),
    seam(
        "run_prompt",
        f"{_WORKER}._run_prompt",
        "one task is one rollout graph",
        takes(f"{_WORKER}._run_prompt", "prompt", "sampling_params", "trajectory", "trace"),
    ),
    seam(
        "rollout_trace",
        "verl.utils.rollout_trace:rollout_trace_op",
        "a task with all of its episodes is one trace of verl's backends",
        exists("verl.utils.rollout_trace:RolloutTraceConfig.get_backend"),
        takes("verl.utils.rollout_trace:rollout_trace_attr", *("sample_index", "step", "name", "validate", "trace")),
        reads("verl.utils.rollout_trace:RolloutTraceConfig", "max_samples_per_step_per_worker"),
        reads("verl.workers.rollout.llm_server:LLMServerClient", "@rollout_trace_op"),
        reads(f"{_WORKER}.generate_sequences", "trace_this_sample = False"),
        removal="when verl's v1 worker traces, and lets a worker say what a session is",
    ),
    seam(
        "agent_loop_postprocess",
        f"{_WORKER}._agent_loop_postprocess",
        "one put a session, in verl's own row format",
        takes(f"{_WORKER}._agent_loop_postprocess", "outputs", "validate", "session_id"),
    ),
    seam(
        "compute_score",
        f"{_WORKER}._compute_score",
        "verl's reward functions score episodes of environments without tasks of their own",
        takes(f"{_WORKER}._compute_score", "outputs", "kwargs"),
    ),
    seam(
        "agent_loop_manager",
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ",
        "the manager starts the worker class that its attribute names",
        reads("verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ.__init__", "self.agent_loop_workers_class"),
    ),
    seam(
        "agent_loop_output",
        "verl.experimental.agent_loop.agent_loop:AgentLoopOutput",
        "a row of ours is one of these",
        fields(
            "verl.experimental.agent_loop.agent_loop:AgentLoopOutput",
            *("prompt_ids", "response_ids", "response_mask", "response_logprobs"),
            *("reward_score", "num_turns", "metrics", "extra_fields"),
        ),
    ),
    seam(
        "chat_tokens",
        "verl.utils.tokenizer.continuous_token_wiring:create_continuous_token_builder",
        "chats are tokenised exactly as verl's own agent loops do",
    ),
    seam(
        "chat_prefix",
        f"{_CHAT}._render_tokens",
        "what verl puts in front of a message to render it is rendered once",
        takes(f"{_CHAT}._render_tokens", "messages", "add_generation_prompt", "tools"),
        reads(
            f"{_CHAT}.render_delta_token_id",
            "self._render_tokens(prefix_messages, add_generation_prompt=False, tools=tools)",
        ),
        removal="when verl's builder remembers it",
    ),
    seam(
        "tool_agent_loop",
        f"{_TOOL_LOOP}:ToolAgentLoop",
        "verl's own code makes the calls of tools and reads them for the chat template",
        takes(f"{_TOOL_LOOP}:ToolAgentLoop._call_tool", "tool_call", "tools_kwargs", "agent_data"),
        takes(f"{_TOOL_LOOP}:ToolAgentLoop._build_assistant_message", "content", "agent_data"),
        reads(f"{_TOOL_LOOP}:ToolAgentLoop._call_tool", 'getattr(agent_data, "_active_tools", self.tools)'),
        reads(f"{_TOOL_LOOP}:ToolAgentLoop._call_tool", "self.max_tool_response_length"),
        takes(
            f"{_TOOL_LOOP}:AgentData",
            *("messages", "image_data", "video_data", "audio_data", "mm_processor_kwargs", "metrics", "request_id"),
            "tools_kwargs",
        ),
        removal="when calling a tool is a function of its own",
    ),
    seam(
        "tool_parser",
        "verl.experimental.agent_loop.tool_parser:ToolParser",
        "turns are read by verl's parsers",
        takes("verl.experimental.agent_loop.tool_parser:ToolParser.extract_tool_calls", "responses_ids", "tools"),
        exists("verl.experimental.agent_loop.tool_parser:ToolParser.get_tool_parser"),
        exists("verl.experimental.agent_loop.tool_parser:ToolParser._registry"),
    ),
    seam(
        "tool_registry",
        "verl.tools.tool_registry:load_all_tools",
        "the tools of `tool_config_path` and `function_tool_path`",
        takes("verl.tools.tool_registry:load_all_tools", "tool_config_path", "function_tool_path"),
        reads("verl.experimental.agent_loop.agent_loop:AgentLoopWorker.__init__", "self.tools = load_all_tools("),
    ),
    seam(
        "token_output",
        "verl.workers.rollout.replica:TokenOutput",
        "what every rollout server answers",
        fields("verl.workers.rollout.replica:TokenOutput", "token_ids", "log_probs", "stop_reason", "extra_fields"),
    ),
)
