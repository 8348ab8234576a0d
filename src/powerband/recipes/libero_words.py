"""Words of the older project's command line, and what they are in `libero`."""

from __future__ import annotations

RENAMED = {
    "train_batch_size": (
        "offline.batch_size_per_rank",
        "rows of one batch on each rank, which is what that code meant; the guide calls it the total",
    ),
    "sample_batch_size": ("sample_batch_size", "rows that chunks are drawn for, to log their error"),
    "dataloader_num_workers": ("offline.loader_threads", "threads, not processes; 0 where rows lie in memory"),
    "gradient_accumulation_steps": "rdt.accumulation",
    "mixed_precision": "run.precision",
    "checkpointing_period": ("run.save_interval", "rows learned from between two checkpoints, not updates"),
    "checkpoints_total_limit": "run.keep_checkpoints",
    "pretrained_model_name_or_path": "pretrained",
    "pretrained_text_encoder_name_or_path": "text_encoder",
    "pretrained_vision_encoder_name_or_path": "vision_encoder",
    "output_dir": ("run.run_dir", "one folder a run; nothing in it is overwritten"),
    "max_train_steps": ("updates", "updates of all ranks together"),
    "learning_rate": "rdt.lr",
    "lr_warmup_steps": "rdt.warmup",
    "resume_from_checkpoint": ("run.resume", "a run folder, a checkpoint, or last"),
    "gradient_checkpointing": "rdt.checkpoint_activations",
    "cond_mask_prob": "rdt.drop_condition",
    "state_noise_snr": "rdt.state_snr_db",
    "dataset_type": (None, "Name the data: data=FILE.hdf5, a LeRobot folder, or demos_dir with recordings."),
    "multi_gpu": (None, "Write gpus=0,1: one rank a GPU; under accelerate launch this is the launcher's own word."),
    "num_processes": (None, "Write nproc=2 with gpus=none, or gpus=0,1; under accelerate launch it is the launcher's."),
}
