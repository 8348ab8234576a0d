"""Supervised training with a data loader: plain torch, accelerate, Lightning, or the Trainer of transformers."""

import sys
import tempfile

import torch
from outcome import Outcome
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows of a fixed function; making a row takes some time, as decoding does."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(64, generator=generator)
        return {"x": x, "labels": x.sum()[None]}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.net(x)
        return {"loss": nn.functional.mse_loss(output, labels), "logits": output}


def plain(steps: int, workers: int) -> None:
    model, loader = Model(), DataLoader(Rows(steps * 64), batch_size=64, shuffle=True, num_workers=workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outcome = Outcome()
    for batch in loader:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    outcome.show(model.parameters())


def by_accelerate(steps: int) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, loader = Model(), DataLoader(Rows(steps * 64), batch_size=64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
    outcome = Outcome()
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    outcome.show(model.parameters())


def by_trainer(steps: int) -> None:
    from transformers import Trainer, TrainingArguments

    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=64, use_cpu=True, report_to=[], save_strategy="no",
            logging_steps=50, disable_tqdm=True, seed=3,
        )  # fmt: skip
        trainer = Trainer(model, options, train_dataset=Rows(steps * 64))
        outcome = Outcome()
        trainer.train()
        outcome.show(model.parameters())


def by_lightning(steps: int) -> None:
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module, loader = Module(), DataLoader(Rows(steps * 64), batch_size=64, shuffle=True)
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    outcome = Outcome()
    trainer.fit(module, loader)
    outcome.show(module.parameters())


if __name__ == "__main__":
    kind, count = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(3)
    if kind in ("plain", "workers"):
        plain(count, 2 if kind == "workers" else 0)
    else:
        {"accelerate": by_accelerate, "trainer": by_trainer, "lightning": by_lightning}[kind](count)
