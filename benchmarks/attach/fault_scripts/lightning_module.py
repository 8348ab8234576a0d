"""PyTorch Lightning: supervised training with its data loader, validation, checkpoints and TensorBoard logger."""

import time

import parts
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Chunks(Dataset):
    """Recorded rows in chunks that take time to decode."""

    def __init__(self, load_ms: float, size: int) -> None:
        self.size = size
        self.rows, self.load_s = torch.randn(20_000, 64), load_ms / 1e3

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.load_s:
            time.sleep(self.load_s)
        start = index * self.size % (len(self.rows) - self.size)
        return self.rows[start : start + self.size]


class Regression(lightning.LightningModule):
    def __init__(self, args) -> None:
        super().__init__()
        self.args, self.curve = args, [0.0]
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch), batch.sum(1, keepdim=True))

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.loss(batch)
        if self.args.figure_every and index % self.args.figure_every == 0:
            self.curve.append(loss.item())
            self.logger.experiment.add_figure("loss", parts.figure_of(self.curve), self.global_step)
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val_loss", self.loss(batch))

    def on_before_optimizer_step(self, optimizer) -> None:
        if self.args.reads:
            norms = parts.parameter_norms(self.parameters(), self.args.reads)
            self.log("norm", sum(norms) / len(norms))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    parser = parts.parser()
    parser.add_argument("--load-ms", type=float, default=0)
    parser.add_argument("--chunk", type=int, default=64, help="rows that are decoded together")
    args = parser.parse_args()
    parts.prepare(args)
    loaders = [
        DataLoader(Chunks(ms, args.chunk), args.batch_size // args.chunk, shuffle=True, collate_fn=torch.cat)
        for ms in (args.load_ms, 0)
    ]
    callbacks = []
    if args.save_every:
        callbacks.append(ModelCheckpoint("checkpoints", every_n_train_steps=args.save_every))
    trainer = lightning.Trainer(
        max_steps=10_000_000, accelerator="cpu", logger=TensorBoardLogger("."), callbacks=callbacks,
        enable_checkpointing=bool(callbacks), enable_progress_bar=False, enable_model_summary=False,
        val_check_interval=args.eval_every or None, limit_val_batches=40 if args.eval_every else 0,
        num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Regression(args), loaders[0], loaders[1] if args.eval_every else None)
