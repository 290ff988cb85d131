"""Private parts of CUDA graph trees and of CUDA graph capture."""
